/*
 * version.h: which Offshoot this is; `offshoot version` and every reply's Server header say it.
 */
#ifndef OFFSHOOT_BASE_VERSION_H
#define OFFSHOOT_BASE_VERSION_H

#define OFFSHOOT_VERSION "0.1.0"

#endif
