"""The module without the library, and with a stand-in for it."""

import rig
from rig import Case


class Alone(Case):
    """No library, no limit."""

    def test_importing_starts_and_loads_nothing(self):
        self.on_driver()
        self.says(
            """
            loaded = open("/proc/self/maps").read()
            print("libcuda" in loaded, "libnvidia" in loaded)
            print([name for name in ("torch", "cupy", "gpulimit.torch") if name in sys.modules])
            print(threading.active_count(), len(os.listdir("/proc/self/task")))
            print(gpulimit.torch.__name__, gpulimit.cupy.__name__, "torch" in sys.modules)
            """,
            """\
            False False
            []
            1 1
            gpulimit.torch gpulimit.cupy False
            """,
        )

    def test_a_limit_that_nothing_keeps_is_told(self):
        for name, value in ("GPULIMIT_MAX", "4G"), ("GPULIMIT_GROUP", "lab"):
            with self.subTest(name=name):
                out, errors = self.run_python("print(gpulimit.active())", **{name: value})
                self.assertEqual(out, "False\n")
                self.assertIn(f"RuntimeWarning: {name} is set, but", errors)
        self.says("", "", GPULIMIT_MAX="4G", preload=rig.LIBRARY)

    def test_works_without_a_gpu(self):
        self.says(
            """
            print(gpulimit.active(), gpulimit.group())
            for figure in gpulimit.limit, gpulimit.usage, gpulimit.available:
                try:
                    figure()
                except gpulimit.Error as error:
                    print(str(error).split(":")[0])
            with gpulimit.peak() as p:
                pass
            print(p.bytes, p.refusals)
            @gpulimit.on_pressure
            def free(size, device):
                print("called")
            print(threading.active_count())
            """,
            """\
            False None
            no GPU here
            no GPU here
            no GPU here
            0 0
            1
            """,
        )

    def test_figures_are_those_of_the_device(self):
        self.on_driver(gpus=2)
        self.says(
            """
            total = gpulimit.limit()
            print(gpulimit.active(), gpulimit.usage() + gpulimit.available() == total > 1 << 30)
            loaded = open("/proc/self/maps").read()
            print("libcuda" in loaded)
            driver = ctypes.CDLL("libcuda.so.1")
            context, device = ctypes.c_void_p(), ctypes.c_int(1)
            driver.cuInit(0)
            driver.cuCtxCreate_v2(ctypes.byref(context), 0, device)
            address = ctypes.c_uint64()
            with gpulimit.peak() as p:
                print(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30)))
            print(p.bytes >= 1 << 30, p.refusals)
            # The current device is the second one.
            print(gpulimit.usage() == gpulimit.usage(1) > 1 << 30, gpulimit.usage(0) < 1 << 30)
            from gpulimit import _driver
            names = [_driver.uuid_of(0), _driver.uuid_of(1)]
            print([gpulimit.usage(f"GPU-{name}") == gpulimit.usage(index)
                   for index, name in enumerate(names)])
            for device in (2, "GPU-nowhere"):
                try:
                    gpulimit.limit(device)
                except gpulimit.Error as error:
                    print(error)
            """,
            """\
            False True
            False
            0
            True 0
            True True
            [True, True]
            no such GPU in this process: device 2
            no such GPU in this process: device GPU-nowhere
            """,
        )

    def test_ordinals_count_visible_devices(self):
        self.on_driver(gpus=2)
        holder = self.start(
            """
            driver = ctypes.CDLL("libcuda.so.1")
            context, device = ctypes.c_void_p(), ctypes.c_int(1)
            driver.cuInit(0)
            address = ctypes.c_uint64()
            print(driver.cuCtxCreate_v2(ctypes.byref(context), 0, device),
                  driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30)), flush=True)
            sys.stdin.read()
            """
        )
        self.assertEqual(holder.stdout.readline(), "0 0\n")
        one = "print(gpulimit.usage(0) > 1 << 30)"
        both = "print(gpulimit.usage(0) > 1 << 30, gpulimit.usage(1) > 1 << 30)"
        self.says(both, "False True\n")
        self.says(both, "True False\n", CUDA_VISIBLE_DEVICES="1,0")
        self.says(one, "True\n", CUDA_VISIBLE_DEVICES="1")
        self.run_python(one, status=1, CUDA_VISIBLE_DEVICES="")
        self.run_python(both, status=1, CUDA_VISIBLE_DEVICES="1")
        self.finish(holder)

    def test_wrong_devices_are_named(self):
        self.on_driver()
        self.says(
            """
            for device in ("cuda:0", "", -1, True, 1.5, "0 ", "\u0661"):
                try:
                    gpulimit.limit(device)
                except ValueError as error:
                    print(error)
            """,
            "".join(
                f"invalid device {device!r}: expected an ordinal such as 0, or a UUID\n"
                for device in ("cuda:0", "", -1, True, 1.5, "0 ", "\u0661")
            ),
        )

    def test_devices_beyond_every_number_are_not_there(self):
        self.on_driver()
        self.says(
            """
            for device in (2**40, "9" * 20):
                try:
                    gpulimit.limit(device)
                except gpulimit.Error as error:
                    print(error)
            print(gpulimit.peak().bytes)
            """,
            f"no such GPU in this process: device {2**40}\n"
            f"no such GPU in this process: device {'9' * 20}\n0\n",
        )


class Limited(Case):
    """A stand-in for the library."""

    def test_figures_are_those_of_the_library(self):
        self.on_driver()
        self.says(
            """
            def memory(field, value):
                stand_in.stand_in_memory(field, ctypes.c_uint64(value))
            print(gpulimit.active(), gpulimit.group())
            memory(4, 80)  # total
            print(gpulimit.limit())
            memory(1, 40), memory(2, 30), memory(3, 10)
            print(gpulimit.limit(), gpulimit.usage(), gpulimit.available(0))
            memory(5, 20), memory(11, 50), memory(12, 3)
            with gpulimit.peak() as p:
                memory(12, 5)
                print(p.bytes, threading.active_count())
                memory(11, 60)
            print(p.bytes, p.refusals)
            try:
                gpulimit.limit(9)
            except gpulimit.Error as error:
                print(error)
            stand_in.stand_in_group(0)
            gpulimit.on_pressure(print)
            print(gpulimit.active(), gpulimit.group(), threading.active_count())
            """,
            """\
            True lab/alice
            80
            40 30 10
            50 1
            60 2
            no such GPU in this process: device 9
            False None 1
            """,
            preload=rig.stand_in(),
        )

    def test_a_peak_ends_with_an_exception(self):
        self.says(
            """
            try:
                with gpulimit.peak() as p:
                    raise KeyError
            except KeyError:
                print(threading.active_count())
            """,
            "1\n",
            preload=rig.stand_in(),
        )
