/*
 * process_stats.h: what /proc says about this process.
 */
#ifndef OFFSHOOT_SERVER_PROCESS_STATS_H
#define OFFSHOOT_SERVER_PROCESS_STATS_H

/* Zeroes where /proc cannot be read. */
typedef struct {
    double resident_bytes, cpu_s;
    int open_fds;
} ProcessStats;

ProcessStats process_stats(void);

/* Seconds since the process was started; 0 when it cannot be told. */
double process_age_s(void);

#endif
