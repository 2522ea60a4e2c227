"""The module with the library itself, in groups on the simulated driver."""

import json
import textwrap

import rig
from rig import MIB, Case

CONTEXT = """
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
context = ctypes.c_void_p()
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ORDINAL) == 0
driver.cuCtxSetCurrent(context)

def take(size):
    address = ctypes.c_uint64()
    driver.cuCtxSetCurrent(context)
    return driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), address

def give(address):
    driver.cuCtxSetCurrent(context)
    return driver.cuMemFree_v2(address)
"""


class Group(Case):
    """Members of a group with a limit of 3 GiB, of which two contexts take 1."""

    def setUp(self):
        super().setUp()
        if not rig.has_interface():
            self.skipTest("the library has no C interface")
        self.on_driver(gpus=2)
        self.gpulimit("create", "lab", "max=3G")
        self.environment["GPULIMIT_GROUP"] = "lab"

    def member(self, code, ordinal=0, **options):
        """Starts a program that holds a context."""
        code = CONTEXT.replace("ORDINAL", str(ordinal)) + textwrap.dedent(code)
        return self.start(code, preload=rig.LIBRARY, **options)

    def of(self, code, **options):
        """Runs a program to its end, and returns what it prints."""
        return self.finish(self.member(code, **options))[0]

    def test_figures_are_those_of_the_controller(self):
        member = self.member(
            """
            status, address = take(1 << 30)
            print(gpulimit.active(), gpulimit.group(), gpulimit.limit(), gpulimit.usage(),
                  gpulimit.available(), gpulimit.limit(1), gpulimit.usage(1), flush=True)
            sys.stdin.read()
            """
        )
        active, group, limit, usage, available, *other = member.stdout.readline().split()
        shown = json.loads(self.gpulimit("show", "lab", "--json"))["groups"][0]["gpus"]
        gpu = next(gpu for gpu in shown if gpu["index"] == 0)
        self.finish(member)
        self.assertEqual((active, group, int(limit)), ("True", "lab", 3 << 30))
        self.assertEqual(int(usage), gpu["usage"])
        # The library keeps a few MiB ready for what the driver takes by itself.
        left = (3 << 30) - gpu["usage"]
        self.assertTrue(left - 8 * MIB <= int(available) <= left, (available, left))
        self.assertEqual([int(figure) for figure in other], [3 << 30, 0])

    def test_devices_by_ordinal_and_uuid(self):
        out = self.of(
            """
            from gpulimit import _driver
            take(1 << 30)
            # The only visible GPU is the second one, and the current device.
            name = "GPU-" + _driver.uuid_of(0)
            used = gpulimit.usage()
            print(used > 1 << 30, gpulimit.usage(0) == gpulimit.usage(name) == used)
            try:
                gpulimit.usage(1)
            except gpulimit.Error as error:
                print(error)
            """,
            CUDA_VISIBLE_DEVICES="1",
        )
        self.assertEqual(out, "True True\nno such GPU in this process: device 1\n")

    def test_figures_before_cuda_is_used(self):
        """Asking does not start CUDA, which a child could not use after a fork."""
        holder = self.member("take(1 << 30)\nprint('holds', flush=True)\nsys.stdin.read()")
        self.assertEqual(holder.stdout.readline(), "holds\n")
        code = """
        from gpulimit import _driver
        early = [gpulimit.active(), gpulimit.limit(), gpulimit.usage(), gpulimit.available()]
        with gpulimit.peak() as p:
            pass
        print(p.bytes, _driver.is_started())
        driver = ctypes.CDLL("libcuda.so.1")
        child = os.fork()
        if child == 0:
            os._exit(driver.cuInit(0))
        print(os.waitpid(child, 0)[1])
        driver.cuInit(0)
        late = [gpulimit.active(), gpulimit.limit(), gpulimit.usage(), gpulimit.available()]
        print(early[:2] == late[:2] == [True, 3 << 30], early[2] > 1 << 30,
              [abs(a - b) < 8 << 20 for a, b in zip(early[2:], late[2:])])
        """
        out, errors = self.run_python(code, preload=rig.LIBRARY)
        self.finish(holder)
        self.assertEqual((out, errors), ("0 False\n0\nTrue True [True, True]\n", ""))

    def test_the_peak_of_a_block(self):
        out = self.of(
            """
            with gpulimit.peak() as p:
                status, address = take(1 << 30)
                give(address)
            first = p.bytes
            with gpulimit.peak() as p:
                take(4 << 30)
            print(first >= 1 << 30, first < 2 << 30, p.bytes < 1 << 30, p.refusals)
            # Blocks overlap, and are exact although the process has held more before.
            held = []
            with gpulimit.peak() as whole:
                for size in (100, 600, 300):
                    with gpulimit.peak(0) as part:
                        give(take(size << 20)[1])
                    held.append(part.bytes)
                    now = whole.bytes
            base = held[0] - (100 << 20)
            print([size - base >> 20 for size in held], now == whole.bytes == held[1] < first)
            print(0 < base < 600 << 20, p.refusals, threading.active_count())
            child = os.fork()
            if child == 0:
                os._exit(whole.__exit__(None, None, None) is not None)
            print(os.waitpid(child, 0)[1])
            """
        )
        self.assertEqual(
            out, "True True True 1\n[100, 600, 300] True\nTrue 1 1\n0\n"
        )

    def test_a_peak_in_which_cuda_begins(self):
        out, errors = self.run_python(
            """
            with gpulimit.peak() as p:
                CONTEXT
                give(take(1 << 30)[1])
                inside = p.bytes
            print(1 << 30 < inside == p.bytes < 2 << 30)
            """.replace("CONTEXT", textwrap.indent(CONTEXT.replace("ORDINAL", "0"), " " * 16)),
            preload=rig.LIBRARY,
        )
        self.assertEqual((out, errors), ("True\n", ""))

    def test_a_group_that_cannot_be_joined_raises_from_the_first_question(self):
        del self.environment["GPULIMIT_GROUP"]
        code = """
        for figure in gpulimit.limit, gpulimit.limit, gpulimit.usage, gpulimit.available:
            try:
                print(figure())
            except gpulimit.Error as error:
                print("gets no GPU memory" in str(error))
        """
        for variables in (
            {"GPULIMIT_GROUP": "nope"},
            {"GPULIMIT_GROUP": "nope", "GPULIMIT_ROOT": "/proc"},
            {"GPULIMIT_MAX": "1G", "GPULIMIT_ROOT": "/proc"},
        ):
            out, _ = self.run_python(code, preload=rig.LIBRARY, **variables)
            self.assertEqual(out, "True\n" * 4, variables)

    def test_a_relative_limit_is_told_before_cuda_starts(self):
        del self.environment["GPULIMIT_GROUP"]
        code = "before = gpulimit.limit()" + CONTEXT.replace("ORDINAL", "0")
        code += "print(take(1 << 20)[0], before == gpulimit.limit(), before)"
        out, _ = self.run_python(code, preload=rig.LIBRARY, GPULIMIT_MAX="-78G")
        taken, is_same, before = out.split()
        self.assertEqual((taken, is_same), ("0", "True"))
        self.assertLess(int(before), 4 << 30)

    def test_a_wrong_limit_is_named(self):
        del self.environment["GPULIMIT_GROUP"]
        code = """
        for started in (False, True):
            for figure in gpulimit.limit, gpulimit.usage, gpulimit.available:
                try:
                    figure()
                except gpulimit.Error as error:
                    print(str(error).split(";")[0])
            print(gpulimit.active())
            with gpulimit.peak() as p:
                pass
            print(p.bytes, gpulimit.on_pressure(print) is print, threading.active_count())
            ctypes.CDLL("libcuda.so.1").cuInit(0)
        """
        out, _ = self.run_python(code, preload=rig.LIBRARY, GPULIMIT_MAX="4X")
        said = (
            "this process gets no GPU memory: GPULIMIT_MAX='4X': invalid size '4X': the size has "
            "an unknown unit\n"
        )
        self.assertEqual(out, (3 * said + "False\n0 True 1\n") * 2)

    def test_a_holder_gives_back_what_another_needs(self):
        holder = self.member(
            """
            status, address = take(1 << 30)
            @gpulimit.on_pressure
            def free(size, device):
                print("asked", size >> 20 > 0, device, give(address), flush=True)
            print(status, flush=True)
            sys.stdin.read()
            """
        )
        self.assertEqual(holder.stdout.readline(), "0\n")
        self.assertEqual(self.of("print(take(1200 << 20)[0])"), "0\n")
        self.assertEqual(self.finish(holder)[0], "asked True 0 0\n")

    def test_a_function_that_frees_nothing_leads_to_a_refusal(self):
        holder = self.member(
            """
            status, address = take(1 << 30)
            gpulimit.on_pressure(lambda size, device: print("asked", flush=True))
            print(status, flush=True)
            sys.stdin.read()
            """
        )
        self.assertEqual(holder.stdout.readline(), "0\n")
        code = "begin = time.monotonic()\nprint(take(1200 << 20)[0], time.monotonic() - begin)"
        status, seconds = self.of(code).split()
        self.assertEqual(status, "2")
        out = self.finish(holder)[0]
        # At most five times a second while the request lasts.
        self.assertTrue(1 <= out.count("asked\n") <= 5 * float(seconds) + 2, out)

    def test_a_capture_is_not_disturbed(self):
        holder = self.member(
            """
            status, address = take(1 << 30)
            stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
            driver.cuStreamCreate(ctypes.byref(stream), 1)
            asked = []
            @gpulimit.on_pressure
            def free(size, device):
                # The request may have asked again during the capture.
                if not asked:
                    asked.append(give(address))
            print(driver.cuStreamBeginCapture_v2(stream, 0), flush=True)
            until(is_calling)
            print(asked, driver.cuStreamEndCapture(stream, ctypes.byref(graph)), flush=True)
            until(lambda: asked)
            print(asked, flush=True)
            sys.stdin.read()
            """
        )
        self.assertEqual(holder.stdout.readline(), "0\n")
        self.assertEqual(self.of("print(take(1200 << 20)[0])"), "0\n")
        self.assertEqual(self.finish(holder)[0], "[] 0\n[0]\n")

    def test_a_lowered_limit_is_noticed(self):
        holder = self.member(
            """
            status, address = take(1 << 30)
            @gpulimit.on_pressure
            def free(size, device):
                print("asked", size > 0, give(address), flush=True)
            print(status, flush=True)
            sys.stdin.read()
            """
        )
        self.assertEqual(holder.stdout.readline(), "0\n")
        self.gpulimit("set", "lab", "max=1G")
        self.assertEqual(holder.stdout.readline(), "asked True 0\n")
        self.finish(holder)

    def test_a_child_is_not_asked_and_ends_well(self):
        out = self.of(
            """
            status, address = take(1 << 30)
            called = []
            gpulimit.on_pressure(lambda size, device: called.append(os.getpid()))
            child = os.fork()
            if child == 0:
                # A worker of a DataLoader: it uses no CUDA, and begins with no functions.
                os._exit(len(called) + threading.active_count())
            print(os.waitpid(child, 0)[1] >> 8)
            child = os.fork()
            if child == 0:
                print(gpulimit.active(), gpulimit.group(), gpulimit.limit() >> 30, flush=True)
                gpulimit.on_pressure(print)
                sys.exit(5)
            print(os.waitpid(child, 0)[1] >> 8)
            """
        )
        self.assertEqual(out, "1\nTrue lab 3\n5\n")

    def test_workers_of_every_kind(self):
        """As those of a DataLoader: forked after CUDA was used, by a server, and started anew."""
        (self.folder / "main.py").write_text(
            textwrap.dedent(
                """
                import multiprocessing
                import gpulimit

                def work(number):
                    gpulimit.torch.enable()
                    gpulimit.on_pressure(print)
                    return gpulimit.active(), gpulimit.group(), gpulimit.limit() >> 30

                if __name__ == "__main__":
                    gpulimit.torch.enable()
                    import torch
                    held = torch.empty(1 << 20, device="cuda")
                    for kind in ("spawn", "forkserver", "fork"):
                        with multiprocessing.get_context(kind).Pool(2) as pool:
                            print(kind, set(pool.map(work, range(4))))
                """
            )
        )
        code = "os.execv(sys.executable, [sys.executable, 'main.py'])"
        expected = "{(True, 'lab', 3)}\n"
        out, errors = self.run_python(code, preload=rig.LIBRARY)
        kinds = ("spawn", "forkserver", "fork")
        self.assertEqual((out, errors), ("".join(f"{kind} {expected}" for kind in kinds), ""))

    def test_a_job_of_its_own(self):
        """GPULIMIT_MAX makes a group; functions are added before CUDA is used."""
        del self.environment["GPULIMIT_GROUP"]
        out, errors = self.run_python(
            """
            gpulimit.on_pressure(print)
            print(gpulimit.active(), gpulimit.group()[:4], gpulimit.limit(), gpulimit.limit(1))
            ctypes.CDLL("libcuda.so.1").cuInit(0)
            print(gpulimit.limit(), gpulimit.usage(), gpulimit.available() > 1 << 30)
            """,
            preload=rig.LIBRARY,
            GPULIMIT_MAX="2G",
        )
        self.assertEqual(errors, "")
        self.assertEqual(out, "True job- 2147483648 2147483648\n2147483648 0 True\n")

    def test_no_gpu_is_visible(self):
        code = """
        for started in (False, True):
            try:
                gpulimit.limit()
            except gpulimit.Error as error:
                print(error)
            ctypes.CDLL("libcuda.so.1").cuInit(0)
        """
        out, _ = self.run_python(code, preload=rig.LIBRARY, CUDA_VISIBLE_DEVICES="")
        self.assertEqual(out, "no such GPU in this process: device 0\n" * 2)

    def test_the_end_while_asked(self):
        for end in ("", "sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), 9)"):
            with self.subTest(end=end):
                status = -9 if "kill" in end else 0
                holder = self.member(
                    """
                    status, address = take(1 << 30)
                    asked = threading.Event()
                    @gpulimit.on_pressure
                    def free(size, device):
                        asked.set()
                        give(address)
                    print(status, flush=True)
                    asked.wait()
                    END
                    """.replace("END", end)
                )
                self.assertEqual(holder.stdout.readline(), "0\n")
                self.assertEqual(self.of("print(take(1200 << 20)[0])"), "0\n")
                _, errors = self.finish(holder, status)
                self.assertEqual(errors, "")
        self.until_empty("lab")
