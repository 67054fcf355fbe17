// Declared in MLX's headers and not exported by its library.
#include "mlx/backend/metal/device.h"

bool control() { return mlx::core::metal::is_nax_available(); }
