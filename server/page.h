/*
 * page.h: the files of server/page/, which the build puts into the binary.
 */
#ifndef OFFSHOOT_SERVER_PAGE_H
#define OFFSHOOT_SERVER_PAGE_H

#include <stddef.h>

typedef struct {
    const char *name; /* "page.html" */
    const unsigned char *data;
    size_t size;
} PageFile;

extern const PageFile page_files[]; /* ends with an entry without a name */

#endif
