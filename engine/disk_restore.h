/*
 * disk_restore.h: the index of the disk cache, made again from the files that are there.
 */
#ifndef OFFSHOOT_ENGINE_DISK_RESTORE_H
#define OFFSHOOT_ENGINE_DISK_RESTORE_H

#include "engine/disk_folder.h"
#include "engine/store.h"

/*
 * Fills an empty index and name[], one an item, by the files' heads; ages are the files'. Files
 * that are broken, outdated, of no use, or too old for max_bytes are removed; another model's count
 * and age. What is not taken is told of in the log, a line a file.
 */
void disk_restore(DiskFolder *f, const CacheShape *shape, Store *store, int64_t max_bytes,
                  CacheName *name);

#endif
