/*
 * vocab.h: token bytes by id, and ids by bytes.
 *
 * Filled once while a tokenizer.json is read, then constant. Ids may have gaps; a token is never
 * empty, so length 0 means "no such id".
 */
#ifndef OFFSHOOT_TEXT_VOCAB_H
#define OFFSHOOT_TEXT_VOCAB_H

#include <stddef.h>
#include <stdint.h>

enum { MAX_TOKEN_ID = (1 << 24) - 1 };

typedef struct {
    uint32_t start, len;    /* into Vocab.bytes */
    uint8_t added, special; /* flags, set by who reads the file */
} VocabToken;

typedef struct {
    uint32_t hash;
    uint32_t id_plus_1; /* 0: free */
} VocabSlot;

typedef struct {
    VocabToken *token; /* [n] */
    int n;             /* one past the largest id */
    int n_tokens;      /* ids in use */
    char *bytes;
    size_t n_bytes;
    VocabSlot *slot; /* open addressing, mask + 1 slots, at most half full */
    uint32_t mask;
} Vocab;

/* Room for ids below n, n_tokens of them, of n_bytes in all. */
void vocab_init(Vocab *v, int n, size_t n_tokens, size_t n_bytes);
void vocab_free(Vocab *v);

/* Copies bytes[0..len), len > 0. Returns -1 if the id or the bytes are already there. */
int vocab_add(Vocab *v, int32_t id, const char *bytes, size_t len);

/* The same but that the bytes may be there: vocab_find does not find these. */
int vocab_add_apart(Vocab *v, int32_t id, const char *bytes, size_t len);

/* Id of a token by its bytes, or -1. */
int32_t vocab_find(const Vocab *v, const char *bytes, size_t len);

/* Bytes of a token; *len = 0 for an id that is not there, out of range included. */
const char *vocab_bytes(const Vocab *v, int32_t id, size_t *len);

#endif
