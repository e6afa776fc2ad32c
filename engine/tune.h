/*
 * tune.h: alpha, the weight of FLOPs in what the prefix cache lets go, found by replaying requests.
 *
 * After Marconi (Pan et al., MLSys 2025, section 4.2): alpha is 0, which is LRU, until something
 * was let go for the first time. Then a window of requests is recorded, five times as many as were
 * seen until then, and served again on a copy of the cache as it was before them, with each alpha
 * of 0, 0.1 .. 2. The best token hit rate wins, of equals the smallest alpha.
 *
 * The copy is none of the cache in use, but of a second one, which serves every request too and
 * never has an alpha but 0: so the two sides share nothing. Windows go on being recorded, shorter
 * ones while alpha is not 0; where the second cache does better by more than a point, alpha falls
 * back to 0. From 0 a new search is tried after a while, each time a longer one, and must gain more
 * than a point.
 *
 * All memory is taken when it is opened. The replays run on a thread of their own or in the call;
 * recorded windows change hands through queues.
 */
#ifndef OFFSHOOT_ENGINE_TUNE_H
#define OFFSHOOT_ENGINE_TUNE_H

#include "base/error.h"
#include "engine/cache_replay.h"

typedef struct Tuner Tuner;

typedef struct {
    CacheOptions cache; /* the cache's own, and what it was opened with */
    FlopCost cost;
    int n_frames, pages_per_frame, max_slots, max_nodes;
    KeepRules rules;
    int max_requests; /* a window's */
    int max_tokens;   /* of its requests together: 4 bytes each; longer requests go unseen */
} TuneSetup;

typedef struct {
    double alpha; /* in use */
    long windows; /* replayed so far */
    long searches, fallbacks;
    long asked_tokens, hit_tokens, lru_tokens; /* of these windows: as served, as LRU would have */
} TuneStats;

/* threaded: the replays run on a thread of their own. NULL and an Error without one. */
Tuner *tune_open(const TuneSetup *setup, int threaded, Error *err);

/* Waits for the thread, which ends what it is at with the replay under way. NULL is fine. */
void tune_close(Tuner *t);

/*
 * r was served from c with n_hit tokens of its prompt cached. Sets c's alpha when a result is
 * there. Takes no memory.
 */
void tune_served(Tuner *t, Cache *c, const CachedRequest *r, int n_hit);

TuneStats tune_stats(const Tuner *t);

#endif
