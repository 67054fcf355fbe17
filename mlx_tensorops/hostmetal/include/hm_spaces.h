// Scalar types, keywords and feature macros of the Metal Shading Language.
//
// The kernel is compiled as C++ for OpenCL 2021, whose address spaces are part of the type system and are
// checked like Metal's; on the host all of them are the same memory. hm_rt.h names them.
#pragma once
#pragma clang system_header
#include "hm_rt.h"

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable

// Dialect: 310, 320, 400 or 410. SDK whose tensor headers are imitated: 260, 261, 262, 264 or 270.
#ifndef __METAL_VERSION__
#define __METAL_VERSION__ 400
#endif
#ifndef __HM_SDK
#define __HM_SDK 262
#endif

#define __METAL__ 1
#define __METAL_MACOS__ 1
#define __HAVE_BFLOAT__ 1
#define __HAVE_SIMDGROUP_MATRIX__ 1
#define __HAVE_ATOMIC_ULONG__ 1
#if __METAL_VERSION__ >= 400
#define __HAVE_TENSOR__ 1
#define __HAVE_EXECUTION_UNIT__ 1
#if __HM_SDK >= 264
#define __HAVE_INT4B_FORMAT_TYPE__ 1
#endif
#endif

// Names that OpenCL reserves or predeclares and Metal does not, or declares itself.
#define local hm_name_local
#define global hm_name_global
#define generic hm_name_generic
#define pipe hm_name_pipe
#define read_only hm_name_read_only
#define write_only hm_name_write_only
#define read_write hm_name_read_write
#define vec_step hm_name_vec_step
#define atomic_int hm_name_atomic_int
#define atomic_uint hm_name_atomic_uint
#define atomic_ulong hm_name_atomic_ulong
#define atomic_float hm_name_atomic_float
#define event_t hm_name_event_t
#define queue_t hm_name_queue_t

#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_INTERNAL METAL_FUNC
#define METAL_CONST constant constexpr

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef __INTPTR_TYPE__ intptr_t;
