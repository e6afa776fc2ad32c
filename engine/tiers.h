/*
 * tiers.h: the tiers of the prefix cache below the serving memory.
 *
 * What the cache lets go is copied to host memory. What it keeps is saved on disk as well, beside
 * the steps. A prompt that goes further with what lies there than with what is in memory waits for
 * it to be read into its own pages and slot; then it goes on as if it had computed it, and the
 * cache has it. Who cannot be served computes.
 *
 * On a device the bytes are copied aside (Backend.aside_begin), between steps of others: to and
 * from the disk through staging memory, where a load waits for its turn and a save is left out.
 */
#ifndef OFFSHOOT_ENGINE_TIERS_H
#define OFFSHOOT_ENGINE_TIERS_H

#include "engine/disk.h"
#include "engine/engine.h"
#include "engine/host_tier.h"

struct Seq;

enum { MAX_SAVES = 16 };

typedef enum { SAVE_FREE, SAVE_COPIED_ASIDE, SAVE_WRITTEN } SaveState;

/* A prefix on its way to disk: what is copied or written. */
typedef struct {
    SaveState state;
    int job; /* SAVE_WRITTEN */
    int n_pages;
    int32_t *page; /* [pages of a sequence] */
    int32_t slot;
} Save;

typedef enum { STAGED_LOAD, STAGED_SAVE, N_STAGED } Staged;

typedef struct {
    unsigned char *memory; /* host_alloc's */
    int in_use;
} Staging;

typedef struct {
    Disk *disk; /* NULL: none */
    Save save[MAX_SAVES];
    const void **from; /* [pages of a sequence] */
    void **to;
    HostTier *host; /* NULL: none */
    void *host_memory;
    int32_t *token, *page; /* of a prefix that goes */
    /* where the serving memory is not the host's: one for loads, one for saves */
    Staging staging[N_STAGED];
    size_t staging_bytes;
    struct { /* of the save that has its */
        int32_t *token;
        int n, first_page;
        uint64_t salt;
    } staged_save;
    int last_aside; /* number of the latest copies aside */
} Tiers;

/* In engine_open. A folder that cannot be used is a line in the log, not an error. */
int tiers_open(Engine *e, Error *err);
void tiers_close(Engine *e);

/* Fills s->disk and s->host_cache. */
void tiers_status(const Engine *e, EngineStatus *s);

/* Prefixes on their way to disk: until they are there the memory that they lie in is nobody's. */
int tiers_saving(const Engine *e);

/* Forgets all that lies in lower tiers; what sequences read from there they still get. */
void tiers_clear(Engine *e);

/* What s has left in the cache, after its first n tokens in slot, is to be saved. */
void tiers_save(Engine *e, struct Seq *s, int n, int32_t slot);

/*
 * 1 when s, which has memory and hit, waits now for more to be read: its state is then SEQ_LOADING
 * until tiers_poll lets it begin. What s goes on from, found in whichever memory, is young on disk.
 */
int tiers_load(Engine *e, struct Seq *s, const CacheHit *hit);

/* Takes what is done; wait: until something is. Sequences whose load is done begin. */
void tiers_poll(Engine *e, int wait);

/* Waits until nobody writes into s's memory any more. */
void tiers_stop_loading(Engine *e, struct Seq *s);

#endif
