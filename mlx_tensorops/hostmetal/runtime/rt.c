/* The runtime of the Metal emulator: one translation unit, so that a user's machine builds it with one
 * compiler run. The parts, in the order in which they use each other: */
#include "state.h"

#include "lines.c"     /* instruction address -> source line */
#include "findings.c"  /* what went wrong, as JSON lines */
#include "layouts.c"   /* lane maps of cooperative tensors */
#include "fibers.c"    /* threads of a threadgroup, rendezvous, barriers */
#include "memory.c"    /* device buffers, threadgroup variables, shadow state */
#include "hooks.c"     /* entry points that instrumented code calls */
#include "dispatch.c"  /* hm_dispatch */
