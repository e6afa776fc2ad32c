/*
 * build_id.h: which build of the program runs.
 */
#ifndef OFFSHOOT_BASE_BUILD_ID_H
#define OFFSHOOT_BASE_BUILD_ID_H

enum { BUILD_ID_SIZE = 65 };

/*
 * The linker's hash over the whole program (--build-id), in hexadecimal digits, as `file` and
 * `readelf -n` print it; "" where the linker left none. Other code or another compiler: another id.
 */
void build_id(char text[BUILD_ID_SIZE]);

#endif
