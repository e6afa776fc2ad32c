/*
 * log.h: one event a line on stderr: `time level event key=value ...`.
 *
 * No text of a prompt or an answer, at any level; nothing per token. Safe from any thread. It does
 * not wait: lines that a pipe or a socket does not take, as its reader is too slow, are lost, and
 * their number is told by the next one. Only a terminal that took a part of a line holds up whoever
 * writes it.
 */
#ifndef OFFSHOOT_BASE_LOG_H
#define OFFSHOOT_BASE_LOG_H

typedef enum { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG } LogLevel;

/* What is printed from now on; the default is LOG_LEVEL_INFO. */
void log_set_level(LogLevel level);

void log_event(LogLevel level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_event(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_event(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_event(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_event(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
