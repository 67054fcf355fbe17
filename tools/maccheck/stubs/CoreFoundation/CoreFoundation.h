/* The few CoreFoundation names that metal-cpp's headers mention; declarations only, for the Mac check. */
#pragma once
typedef double CFTimeInterval;
typedef const void* CFTypeRef;
typedef const struct __CFString* CFStringRef;
