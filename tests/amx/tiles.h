/*
 * tiles.h: the tile unit of AMX as functions, for tests on a CPU that has AVX-512 alone: run.sh.
 *
 * Included before the sources of -DISA=amx, whose intrinsics become these functions, and before
 * kernels/backend_cpu.c, which so finds the unit, and may use it once it has asked the system.
 *
 * The arithmetic is that of Intel's manual (TDPBF16PS, TDPBSSD and its like). What a CPU would
 * answer with a fault ends the program and says why, as do configurations that we never need:
 * palette 0, and a first row to begin with.
 */
#ifndef OFFSHOOT_TESTS_AMX_TILES_H
#define OFFSHOOT_TESTS_AMX_TILES_H

#include <cpuid.h>
#include <immintrin.h>
#include <unistd.h>

/* CPUID as it is, and in leaf 7 the bits of AMX. */
int tiles_cpuid(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c,
                unsigned *d);

/* Asking the system for the state of the tiles, of which it allows all; no other call is known. */
long tiles_syscall(long number, int what, int feature);

/* Of the thread that calls. t, c, a and b are numbers of registers; stride is in bytes. */
void tiles_loadconfig(const void *config);
void tiles_release(void);
void tiles_zero(int t);
void tiles_loadd(int t, const void *base, long stride);
void tiles_stored(int t, void *base, long stride);

/* c += a b, of pairs of bf16 or of four bytes, a's and b's signed or not. */
void tiles_dpbf16ps(int c, int a, int b);
void tiles_dpbssd(int c, int a, int b);
void tiles_dpbsud(int c, int a, int b);
void tiles_dpbusd(int c, int a, int b);
void tiles_dpbuud(int c, int a, int b);

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#define __get_cpuid_count  tiles_cpuid
#define syscall            tiles_syscall
#define _tile_loadconfig   tiles_loadconfig
#define _tile_release      tiles_release
#define _tile_zero         tiles_zero
#define _tile_loadd        tiles_loadd
#define _tile_stream_loadd tiles_loadd
#define _tile_stored       tiles_stored
#define _tile_dpbf16ps     tiles_dpbf16ps
#define _tile_dpbssd       tiles_dpbssd
#define _tile_dpbsud       tiles_dpbsud
#define _tile_dpbusd       tiles_dpbusd
#define _tile_dpbuud       tiles_dpbuud

#endif
