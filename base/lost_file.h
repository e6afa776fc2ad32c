/*
 * lost_file.h: what happens when a file goes while its bytes are mapped.
 */
#ifndef OFFSHOOT_BASE_LOST_FILE_H
#define OFFSHOOT_BASE_LOST_FILE_H

/*
 * From now on, who looks at bytes of a mapped file that was cut since, or that its disk no longer
 * gives, ends the process: with a line that names the file, and with `status`. Without that the
 * process ends by SIGBUS and says nothing.
 */
void lost_file_ends_process(int status);

#endif
