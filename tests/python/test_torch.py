"""`gpulimit.torch` with a stand-in for PyTorch (fakes/torch) on the simulated driver."""

import rig
from rig import MIB, Case


class Cache(Case):
    """A stand-in for the library asks for memory."""

    def setUp(self):
        super().setUp()
        self.on_driver()

    def asked(self, code, expected, **options):
        self.says(code, expected, preload=rig.stand_in(), **options)

    def test_the_cache_is_emptied_at_most_once_a_second(self):
        self.asked(
            """
            import torch
            gpulimit.torch.enable()
            gpulimit.torch.enable()
            print(torch.cuda.is_initialized(), stand_in.stand_in_registered())
            kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            begin = time.monotonic()
            for count in (1, 2):
                cached = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
                del cached
                until(lambda: ask(1 << 30) or torch.cuda.memory_reserved() <= 64 << 20)
                print(count, torch._allocator.empties)
            print(time.monotonic() - begin >= 1, *torch.cuda._device.values())
            # Nothing is cached, so nothing is done.
            answer(1 << 30)
            print(torch._allocator.empties)
            """,
            """\
            False 1
            1 1
            2 2
            True 0
            2
            """,
        )

    def test_before_cuda_is_used_nothing_is_done(self):
        self.asked(
            """
            gpulimit.torch.enable()
            import torch
            answer(1)
            print(torch.cuda.is_initialized(), torch._allocator.empties)
            gpulimit.torch.disable()
            until(lambda: not stand_in.stand_in_registered())
            """,
            "False 0\n",
        )

    def test_a_capture_that_begins_after_the_look_is_harmless(self):
        self.asked(
            """
            import torch
            gpulimit.torch.enable()
            torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
            # The look is before the free: only PyTorch's allocator knows of this capture.
            free = torch.cuda.empty_cache
            tried = []
            def late():
                stand_in.stand_in_captures(0 if tried else 1)
                torch.cuda._capturing = True
                tried.append(1)
                free()
            torch.cuda.empty_cache = late
            ask(1)
            until(lambda: tried and not is_calling())
            print(torch.cuda.memory_reserved() >> 20)
            # So is `use_mem_pool`, in which some versions of PyTorch free nothing, either.
            stand_in.stand_in_captures(0)
            ask(1)
            until(lambda: len(tried) >= 2)
            stand_in.stand_in_captures(0)
            torch.cuda._capturing = False
            torch.cuda.empty_cache = free
            stand_in.stand_in_captures(0)
            ask(1)
            until(lambda: torch.cuda.memory_reserved() == 0)
            """,
            "32\n",
        )

    def test_a_free_spoils_no_capture_of_another_thread(self):
        """The driver's own rule, with a capture in the global mode that nobody has counted."""
        for relaxed in (True, False):
            with self.subTest(relaxed=relaxed):
                self.asked(
                    """
                    import torch
                    torch.cuda.init()
                    driver, stream, graph = torch.cuda._driver, ctypes.c_void_p(), ctypes.c_void_p()
                    if not RELAXED:
                        from gpulimit import _driver
                        _driver.allow_frees_during_captures = lambda: None
                    done = []
                    @gpulimit.on_pressure
                    def free(size, device):
                        done.append(torch.cuda._call("cuMemFree_v2", ctypes.c_uint64(block[1])))
                    block = torch._allocator.take(1)
                    print(driver.cuStreamCreate(ctypes.byref(stream), 1),
                          driver.cuStreamBeginCapture_v2(stream, 0))
                    ask(1)
                    until(lambda: done)
                    print(done, driver.cuStreamEndCapture(stream, ctypes.byref(graph)))
                    """.replace("RELAXED", str(relaxed)),
                    "0 0\n[0] 0\n" if relaxed else "0 0\n[900] 901\n",
                )


class Report(Case):
    """An out-of-memory error, with the library and a group."""

    def setUp(self):
        super().setUp()
        self.on_driver()
        self.gpulimit("create", "lab", "max=2G")
        self.gpulimit("create", "lab/alice")
        self.environment["GPULIMIT_GROUP"] = "lab/alice"

    full = """
    import torch
    gpulimit.torch.enable(REPORT)
    for _ in range(2):
        try:
            torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            print("caught", "out of memory" in str(error))
    """

    def of(self, report, **options):
        code = self.full.replace("REPORT", report)
        out, errors = self.run_python(code, preload=rig.LIBRARY, **options)
        self.assertIn("caught True\ncaught True\n", out)
        lines = errors.splitlines()
        own = ("gpulimit: refused", "gpulimit: ", "  ")
        return out, [line for line in lines if not line.startswith(own[0])]

    def test_can_be_turned_off_and_redirected(self):
        _, errors = self.of("False")
        self.assertFalse([line for line in errors if "PyTorch is out of memory" in line])
        out, errors = self.of("print")
        self.assertEqual(out.count("PyTorch is out of memory"), 1)
        self.assertFalse([line for line in errors if "PyTorch is out of memory" in line])
        self.of("'report.txt'")
        text = (self.folder / "report.txt").read_text()
        self.assertEqual(text.count("PyTorch is out of memory"), 1)
        self.assertIn("PyTorch's own summary", text)

    def test_a_report_goes_to_no_descriptor_or_file_object(self):
        code = """
            import sys, gpulimit.torch
            for report in 1, sys.stderr, None:
                try:
                    gpulimit.torch.enable(report=report)
                except TypeError as error:
                    print(error)
        """
        out, _ = self.run_python(code)
        self.assertEqual(out.count("report takes True, False, a path or a function, not"), 3)

    def test_a_report_that_fails_is_logged_and_harmless(self):
        _, errors = self.of("'/nowhere/report.txt'")
        self.assertTrue([line for line in errors if "cannot report an out-of-memory" in line])

    @rig.with_interface
    def test_names_who_in_the_group_holds_what(self):
        holder = self.start(
            """
            import torch
            held = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
            print("holds", flush=True)
            sys.stdin.read()
            """,
            preload=rig.LIBRARY,
        )
        self.assertEqual(holder.stdout.readline(), "holds\n")
        text = "\n".join(self.of("True")[1])
        self.finish(holder)
        self.assertIn("PyTorch is out of memory: it asked for 8.0 GiB on GPU 0", text)
        self.assertIn("Group lab/alice: limit 2.0 GiB, usage ", text)
        self.assertRegex(text, r"This process holds \d.*driver")
        self.assertRegex(text, rf"1\.[0-9] GiB  pid {holder.pid}, .*allocations 512\.0 MiB")
        self.assertIn("(this process)", text)
        self.assertIn("PyTorch's own summary", text)

    @rig.with_interface
    def test_without_the_program_the_processes_are_unknown(self):
        text = "\n".join(self.of("True", PATH="/nowhere")[1])
        self.assertIn("Group lab/alice: limit 2.0 GiB", text)
        self.assertIn("The group's processes are unknown: the program gpulimit", text)


class Batches(Case):
    """`find_batch`, on a simulated GPU and under a limit."""

    search = """
    import torch
    sizes, refused = [], [0]
    kept = []
    def step(n):
        sizes.append(n)
        if not kept:
            kept.append(torch.empty(FIXED << 20, dtype=torch.uint8, device="cuda"))
        try:
            torch.empty(n * EACH << 10, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            refused[0] += 1
            raise
    best = gpulimit.torch.find_batch(step, OPTIONS)
    print(best, refused[0], len(sizes), max(sizes))
    """

    def found(self, fixed, each, options="", **rest):
        code = self.search.replace("FIXED", str(fixed)).replace("EACH", str(each))
        code = code.replace("OPTIONS", options)
        return [int(word) for word in self.run_python(code, **rest)[0].split()]

    def setUp(self):
        super().setUp()
        self.on_driver(capacity=8192 * MIB)

    def test_the_last_measurement_is_left_for_why(self):
        code = self.search + "print(*torch._gpulimit_batch)\n"
        code = code.replace("FIXED", "100").replace("EACH", "1024").replace("OPTIONS", "most=32")
        best, *_, batch, took, each = map(int, self.run_python(code)[0].split())
        self.assertEqual((batch, each), (best, MIB))
        self.assertGreaterEqual(took, (100 + batch) * MIB)

    def test_the_batch_fills_the_room_without_a_storm_of_refusals(self):
        for fixed, each, options in [
            (100, 1024, ""),
            (1000, 256, ""),
            (10, 10_000, ""),
            (500, 40_000, "start=64"),
            (500, 300_000, "start=256"),
            (0, 1024, "start=1"),
        ]:
            with self.subTest(fixed=fixed, each=each, options=options):
                best, refused, steps, _ = self.found(fixed, each, options)
                # The context and the driver take some of the 8 GiB, and single elements are large.
                room = (7000 - fixed) * MIB
                self.assertLess(best * each << 10, 8192 * MIB)
                self.assertGreater((best + 1) * each << 10, room * 0.85)
                self.assertLessEqual(refused, 3)
                self.assertLess(steps, 20)

    def test_a_limit_counts(self):
        self.gpulimit("create", "lab", "max=2G")
        options = {"GPULIMIT_GROUP": "lab", "preload": rig.LIBRARY}
        best, refused, _, _ = self.found(100, 1024, **options)
        self.assertTrue(1000 < best < 1948, best)
        self.assertLessEqual(refused, 1 if rig.has_interface() else 4)

    def test_the_result_is_bounded(self):
        self.assertEqual(self.found(0, 1, "most=1000")[0], 1000)
        self.assertEqual(self.found(0, 1, "start=100, most=10")[0], 10)

    def test_what_never_fits_is_an_error(self):
        code = """
        import torch
        calls = []
        def step(n):
            calls.append(n)
            torch.empty(n * (9 << 30), dtype=torch.uint8, device="cuda")
        try:
            gpulimit.torch.find_batch(step)
        except gpulimit.Error as error:
            print(error, calls)
        def wrong(n):
            raise RuntimeError("mine")
        for call in (lambda: gpulimit.torch.find_batch(wrong),
                     lambda: gpulimit.torch.find_batch(step, start=0),
                     lambda: gpulimit.torch.find_batch(step, 1.5)):
            try:
                call()
            except (RuntimeError, ValueError, TypeError) as error:
                print(error)
        """
        self.says(
            code,
            """\
            a batch of 1 does not fit into the GPU memory left [32, 4, 1]
            mine
            invalid start=0, most=65536: expected at least 1
            'float' object cannot be interpreted as an integer
            """,
        )
