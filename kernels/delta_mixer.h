/*
 * delta_mixer.h: what lies between the two matrices of a gated DeltaNet layer, as one operation.
 */
#ifndef OFFSHOOT_KERNELS_DELTA_MIXER_H
#define OFFSHOOT_KERNELS_DELTA_MIXER_H

#include "kernels/gated_delta.h"
#include "kernels/rows.h"

/*
 * The three in this order, to the bit: delta is of what conv makes, norm of what delta makes, in
 * place (norm.x == norm.out == delta.out), and all have the same n rows and the same heads. Left
 * are norm.out, the slots, and of rows with dst < 0 their records: conv.k, delta.v (u) and
 * conv.decay. Whatever else the three hand to each other may have been written or not.
 * A pass of the model calls this; the three are its definition, and what a GPU runs for many rows.
 */
typedef struct {
    int n;
    ConvGates conv;
    GatedDelta delta;
    GatedNorm norm;
} DeltaMixer;

#endif
