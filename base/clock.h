/*
 * clock.h: the time that only goes forward.
 */
#ifndef OFFSHOOT_BASE_CLOCK_H
#define OFFSHOOT_BASE_CLOCK_H

/* Milliseconds on the monotonic clock. */
double clock_ms(void);

/* Milliseconds that the calling thread has computed. */
double clock_thread_ms(void);

#endif
