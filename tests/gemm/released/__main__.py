from tests.gemm.released import RELEASED

RELEASED.write()
