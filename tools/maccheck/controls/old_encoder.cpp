// How a command encoder was found before MLX 0.31.2.
#include "mlx/backend/metal/device.h"

auto& control(mlx::core::metal::Device& device) { return device.get_command_encoder(0); }
