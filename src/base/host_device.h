// QUIRE_HD marks functions that run on the host and on a CUDA device; a plain compiler sees
// nothing.
#ifndef QUIRE_BASE_HOST_DEVICE_H_
#define QUIRE_BASE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define QUIRE_HD __host__ __device__
#else
#define QUIRE_HD
#endif

// Where a kernel's code is compiled, and not the host's.
#if defined(__CUDA_ARCH__) && !defined(QUIRE_ON_DEVICE)
#define QUIRE_ON_DEVICE
#endif

#endif  // QUIRE_BASE_HOST_DEVICE_H_
