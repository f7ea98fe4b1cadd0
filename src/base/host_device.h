// QUIRE_HD marks functions that run on the host and on a CUDA device; a plain compiler sees
// nothing.
#ifndef QUIRE_BASE_HOST_DEVICE_H_
#define QUIRE_BASE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define QUIRE_HD __host__ __device__
#else
#define QUIRE_HD
#endif

#endif  // QUIRE_BASE_HOST_DEVICE_H_
