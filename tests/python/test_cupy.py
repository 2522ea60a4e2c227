"""`gpulimit.cupy` with a stand-in for CuPy (fakes/cupy) on the simulated driver."""

import rig
from rig import Case


class Pools(Case):
    def test_unused_blocks_are_given_back(self):
        self.on_driver()
        self.says(
            """
            import cupy
            gpulimit.cupy.enable()
            kept, unused = cupy.zeros(2 << 20), cupy.zeros(4 << 20)
            del unused
            pool = cupy.get_default_memory_pool()
            print(pool.free_bytes() >> 20)
            answer(1, -1)  # a device that this process does not see
            print(pool.free_bytes() >> 20)
            ask(1)
            until(lambda: pool.free_bytes() == 0)
            used = cupy.cuda.Device.used_by
            print(*used.values(), threading.get_ident() in used)
            class Other:
                freed = 0
                def free_all_blocks(self):
                    self.freed += 1
            other = Other()
            gpulimit.cupy.enable(other)
            ask(1)
            until(lambda: other.freed)
            gpulimit.cupy.disable()
            until(lambda: not stand_in.stand_in_registered())
            """,
            "4\n4\n0 False\n",
            preload=rig.stand_in(),
        )
