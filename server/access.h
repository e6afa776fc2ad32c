/*
 * access.h: who may ask: API keys, and the web pages whose scripts may.
 */
#ifndef OFFSHOOT_SERVER_ACCESS_H
#define OFFSHOOT_SERVER_ACCESS_H

#include "base/error.h"
#include "server/http.h"

/* An error for lists that nobody could mean: with an empty key, with what is no origin. */
int access_check(const char *keys, const char *origins, Error *err);

/* keys: separated by commas; NULL or "": everybody may. */
int access_has_key(const char *keys, const Exchange *ex);

/*
 * Adds the headers by which a browser lets a page read the reply. origins: separated by commas, or
 * "*"; NULL: none. For OPTIONS also those that say what it may send.
 */
void access_add_cors(const char *origins, Exchange *ex);

#endif
