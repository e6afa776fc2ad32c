/*
 * loading.h: fills a Service on a thread of its own, so that the server can say meanwhile that it
 * is not ready.
 */
#ifndef OFFSHOOT_SERVER_LOADING_H
#define OFFSHOOT_SERVER_LOADING_H

#include "server/server.h"

typedef struct Loading Loading;

Loading *loading_start(const ServiceLoader *loader, Error *err);

/* Readable when the loader has returned; then loading_result: what it returned, *service or *err.
 */
int loading_fd(const Loading *l);
int loading_result(Loading *l, Service *service, Error *err);

/* Waits for the loader's end; nothing can hurry it. NULL is fine. */
void loading_close(Loading *l);

#endif
