// Declared in MLX's headers and not exported by its library.
#include "mlx/backend/metal/utils.h"

MTL::Size control(int x, int y, int z) { return mlx::core::get_block_dims(x, y, z); }
