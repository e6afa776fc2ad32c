/*
 * mirror.h: a backend whose operations take host arrays, over a device that has its own memory.
 *
 * The kernel tests hand plain arrays to every backend. A mirror copies what an argument struct
 * points to into the device's memory, runs the device's operation there, waits, and copies the
 * outputs back. Arrays are of exactly the size that the operations' headers give them; an array
 * keeps the low 8 bits of its address, and arrays that overlap on the host overlap on the device.
 * Between arrays lie red zones of NaN: an operation that writes into one, between the rows of an
 * output, or into an array that it may only read, ends the program, as a failed device does.
 */
#ifndef OFFSHOOT_TESTS_MIRROR_H
#define OFFSHOOT_TESTS_MIRROR_H

#include "kernels/backend.h"
#include "tests/backend_simt.h"

/* Memory of a mirror is host memory. Closing it closes device. Ends the program without memory. */
Backend *mirror_open(Backend *device);

/* Mirrors of what open_gpu_backends opens. */
int mirror_open_gpus(Backend *gpu[MAX_GPU_BACKENDS]);

#endif
