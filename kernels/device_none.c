/* device_none.c: stands in for device_cuda.c where the program is built without CUDA. */
#include "kernels/backend.h"

Backend *backend_cuda_open(unsigned leave_out, Error *err)
{
    (void)leave_out;
    error_set(err, ERR_INPUT, "this program was built without CUDA (make needs nvcc on the PATH)");
    return NULL;
}
