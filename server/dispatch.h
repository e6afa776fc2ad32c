/*
 * dispatch.h: answers on their way to the engine, in it, and back.
 *
 * The engine has a few more than it runs at a time; the rest waits here. The line is fair: a
 * request with many answers gets one place in turn with those that came after it, so it holds
 * nobody up by its size. Runs on the server's thread and never waits for the engine's.
 */
#ifndef OFFSHOOT_SERVER_DISPATCH_H
#define OFFSHOOT_SERVER_DISPATCH_H

#include "server/answer.h"
#include "server/engine_thread.h"

typedef struct Dispatch Dispatch;

/* progress(ctx, answer) after each change: text, probs, more of the prompt, or ANSWER_DONE. */
typedef void (*DispatchProgress)(void *ctx, Answer *answer);

/*
 * Starts the engine's thread. n_places: answers that the engine has at a time; max_live: answers
 * there and in the line, beyond which dispatch_has_room says no.
 */
Dispatch *dispatch_open(Engine *engine, int n_places, int max_live, DispatchProgress progress,
                        void *ctx, Error *err);

/* Cancels what is left and stops the thread. No answer is lent any more; progress is not called. */
void dispatch_close(Dispatch *d);

/*
 * To be polled for reading; then dispatch_read, which takes all there is. 1: the rest of a step is
 * on its way, wait for it before clients are told, as a step should be one chunk; 0: all is here;
 * -1: the device is lost.
 */
int dispatch_fd(const Dispatch *d);
int dispatch_read(Dispatch *d, Error *err);

/* The engine's status after its last step. Never waits. */
void dispatch_status(const Dispatch *d, EngineStatus *status);

/* Answers that were added and are not done. */
int dispatch_n_live(const Dispatch *d);

/*
 * Milliseconds since the engine made a step, or got something to do after it had nothing, or only
 * what was paused. 0: it has nothing else.
 */
int64_t dispatch_silent_ms(const Dispatch *d);

/* Whether another request may join the line. */
int dispatch_has_room(const Dispatch *d);

/* Seconds until the line is likely to be gone, by the answers that ended lately: 1 to 30. */
int dispatch_retry_after(const Dispatch *d);

/* Answers in the line. */
int dispatch_n_waiting(const Dispatch *d);

/* The answer must stay where it is until it is ANSWER_DONE. index tells its turn in its request. */
void dispatch_add(Dispatch *d, Answer *a);

/* Stops an answer, or lets it go on, within a step or two. */
void dispatch_pause(Dispatch *d, Answer *a, int paused);

/* An answer that waits is done at once (progress is called); a running one soon. */
void dispatch_cancel(Dispatch *d, Answer *a);

/*
 * Has the engine's thread do something between two steps. Its number, from 1 on, or -1 when
 * MAX_ORDERS are open. It is done when dispatch_n_obeyed says as much.
 */
long dispatch_order(Dispatch *d, EngineOrder order);
long dispatch_n_obeyed(const Dispatch *d);

#endif
