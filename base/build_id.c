/* build_id.c: see build_id.h. */
#include "base/build_id.h"

#include <link.h>
#include <stdio.h>
#include <string.h>

static const char OWNER[] = "GNU";

static size_t padded(size_t n)
{
    return (n + 3) & ~(size_t)3;
}

/* Of notes: each a header, the owner's name and the content, both padded to 4 bytes. */
static int find_id(const unsigned char *note, size_t bytes, char *text)
{
    ElfW(Nhdr) head;
    while (bytes >= sizeof head) {
        memcpy(&head, note, sizeof head);
        const unsigned char *name = note + sizeof head, *id = name + padded(head.n_namesz);
        size_t size = sizeof head + padded(head.n_namesz) + padded(head.n_descsz);
        if (size > bytes) return 0;
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == sizeof OWNER &&
            !memcmp(name, OWNER, sizeof OWNER)) {
            for (size_t i = 0; i < head.n_descsz && i < (BUILD_ID_SIZE - 1) / 2; i++)
                snprintf(text + 2 * i, 3, "%02x", id[i]);
            return 1;
        }
        note += size, bytes -= size;
    }
    return 0;
}

/* Of the first object, which is the program. */
static int look(struct dl_phdr_info *program, size_t bytes, void *text)
{
    (void)bytes;
    for (int i = 0; i < program->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &program->dlpi_phdr[i];
        if (part->p_type == PT_NOTE &&
            find_id((const unsigned char *)(program->dlpi_addr + part->p_vaddr), part->p_memsz,
                    text))
            break;
    }
    return 1;
}

void build_id(char text[BUILD_ID_SIZE])
{
    *text = '\0';
    dl_iterate_phdr(look, text);
}
