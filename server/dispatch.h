/*
 * dispatch.h: answers on their way to the engine, in it, and back.
 *
 * The engine runs a bounded number at a time; the rest waits here in order of arrival, so that a
 * request with many prompts needs no room for all of them at once. Runs on the server's thread and
 * never waits for the engine's.
 */
#ifndef OFFSHOOT_SERVER_DISPATCH_H
#define OFFSHOOT_SERVER_DISPATCH_H

#include "server/answer.h"

typedef struct Dispatch Dispatch;

/* progress(ctx, answer) after each change: new text or probs, or ANSWER_DONE. */
typedef void (*DispatchProgress)(void *ctx, Answer *answer);

/*
 * Starts the engine's thread. max_running: answers in the engine at a time, waiting ones included.
 */
Dispatch *dispatch_open(Engine *engine, int max_running, DispatchProgress progress, void *ctx,
                        Error *err);

/* Cancels what is left and stops the thread. No answer is lent any more; progress is not called. */
void dispatch_close(Dispatch *d);

/*
 * To be polled for reading; then dispatch_read, which takes all there is. 1: the rest of a step is
 * on its way, wait for it before clients are told, as a step should be one chunk; 0: all is here;
 * -1: the device is lost.
 */
int dispatch_fd(const Dispatch *d);
int dispatch_read(Dispatch *d, Error *err);

/* Answers that were added and are not done. */
int dispatch_n_live(const Dispatch *d);

/* Whether there is a place in the engine or in front of it for another request. */
int dispatch_has_room(const Dispatch *d);

/* The answer must stay where it is until it is ANSWER_DONE. */
void dispatch_add(Dispatch *d, Answer *a);

/* An answer that waits is done at once (progress is called); a running one soon. */
void dispatch_cancel(Dispatch *d, Answer *a);

#endif
