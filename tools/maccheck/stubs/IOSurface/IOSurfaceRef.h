/* See CoreFoundation.h. */
#pragma once
typedef struct __IOSurface* IOSurfaceRef;
