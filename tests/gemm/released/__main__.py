from tests.gemm.released import write

write()
