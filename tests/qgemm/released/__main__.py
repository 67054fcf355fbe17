from tests.qgemm.released import RELEASED

RELEASED.write()
