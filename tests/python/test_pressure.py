"""Functions that are called under pressure: threads, forks, captures, exceptions, the end."""

import signal

import rig
from rig import Case


class Callbacks(Case):
    def asked(self, code, expected, **options):
        self.says(code, expected, preload=rig.stand_in(), **options)

    def test_functions_are_called_in_a_thread_of_the_module(self):
        self.asked(
            """
            called = []
            @gpulimit.on_pressure
            def free(size, device):
                called.append((size, device, threading.current_thread().name))
            gpulimit.on_pressure(free)
            print(stand_in.stand_in_registered(), free.__name__)
            ask(5 << 30, 1)
            until(lambda: called)
            ask(7, -1)
            until(lambda: len(called) == 2)
            print(*called, sep="\\n")
            """,
            """\
            1 free
            (5368709120, 1, 'gpulimit-pressure')
            (7, 'GPU-of-others', 'gpulimit-pressure')
            """,
        )

    def test_an_exception_is_logged_and_harmless(self):
        out, errors = self.run_python(
            """
            called, worked = [], []
            @gpulimit.on_pressure
            def fails(size, device):
                called.append(size)
                raise [ValueError("mine"), SystemExit(3), KeyboardInterrupt()][len(called) - 1]
            @gpulimit.on_pressure
            def works(size, device):
                worked.append(size)
            for count in (1, 2, 3):
                ask(1)
                until(lambda: len(called) == len(worked) == count)
            """,
            preload=rig.stand_in(),
        )
        self.assertEqual(out, "")
        for text in ("fails", "ValueError: mine", "SystemExit: 3", "KeyboardInterrupt"):
            self.assertIn(text, errors)

    def test_an_exception_is_harmless_if_it_cannot_be_logged(self):
        for spoil in ("sys.stderr.close()", "logging.getLogger('gpulimit').addHandler(Handler())"):
            with self.subTest(spoil=spoil):
                self.asked(
                    """
                    import logging
                    class Handler(logging.Handler):
                        def emit(self, record):
                            raise SystemExit("the handler's")
                    called, statuses = [], []
                    @gpulimit.on_pressure
                    def fails(size, device):
                        called.append(size)
                        child = os.fork()
                        if child:
                            statuses.append(os.waitpid(child, 0)[1] >> 8)
                        raise ValueError
                    SPOIL
                    for count in (1, 2):
                        ask(1)
                        until(lambda: len(statuses) == count)
                    print(called, statuses, stand_in.stand_in_registered())
                    """.replace("SPOIL", spoil),
                    "[1, 1] [1, 1] 1\n",
                )

    def test_a_thread_that_has_died_is_replaced(self):
        out, _ = self.run_python(
            """
            from gpulimit import _library as library
            called = []
            def free(size, device):
                called.append(size)
            gpulimit.on_pressure(free)
            def fail(milliseconds):
                raise MemoryError
            thread = next(thread for thread in threading.enumerate() if "gpulimit" in thread.name)
            wait, library.wait = library.wait, fail
            thread.join()
            library.wait = wait
            print(stand_in.stand_in_registered())
            gpulimit.on_pressure(free)
            ask(1)
            until(lambda: called)
            print(stand_in.stand_in_registered(), called)
            """,
            preload=rig.stand_in(),
        )
        self.assertEqual(out, "0\n1 [1]\n")

    def test_no_function_is_called_during_a_capture(self):
        self.asked(
            """
            called = []
            gpulimit.on_pressure(lambda size, device: called.append(size))
            stand_in.stand_in_captures(1)
            ask(1)
            until(lambda: stand_in.stand_in_looks() > 2)
            print(called)
            stand_in.stand_in_captures(0)
            until(lambda: called)
            print(called)
            """,
            "[]\n[1]\n",
        )

    def test_calls_are_never_nested(self):
        self.asked(
            """
            depth, most, called = [0], [0], [0]
            def free(size, device):
                depth[0] += 1
                most[0] = max(most[0], depth[0])
                ask(1) if called[0] < 3 else None
                time.sleep(0.05)  # A shorter pause would only prove less.
                called[0] += 1
                depth[0] -= 1
            gpulimit.on_pressure(free)
            gpulimit.on_pressure(lambda size, device: free(size, device))
            ask(1)
            until(lambda: called[0] >= 4)
            print(most[0])
            """,
            "1\n",
        )

    def test_no_lock_is_held_during_a_call(self):
        self.asked(
            """
            done = []
            @gpulimit.on_pressure
            def free(size, device):
                def others():
                    gpulimit.on_pressure(print)
                    gpulimit.off_pressure(print)
                    gpulimit.available()
                thread = threading.Thread(target=others)
                thread.start()
                thread.join(60)
                done.append(not thread.is_alive())
            ask(1)
            until(lambda: done)
            print(done)
            """,
            "[True]\n",
        )

    def test_without_functions_the_thread_ends(self):
        self.asked(
            """
            def free(size, device): pass
            for _ in range(2):
                gpulimit.on_pressure(free)
                print(threading.active_count(), stand_in.stand_in_registered())
                gpulimit.off_pressure(free)
                until(lambda: threading.active_count() == 1)
                print(stand_in.stand_in_registered())
            """,
            "2 1\n0\n2 1\n0\n",
        )

    def test_a_notebooks_cell_can_run_again(self):
        self.asked(
            """
            called = []
            cell = '''
            @gpulimit.on_pressure
            def free(size, device):
                called.append(version)
            '''
            import textwrap
            for version in (1, 2):
                exec(textwrap.dedent(cell))
            class Pool:
                def free(self, size, device):
                    called.append(self)
            pools = Pool(), Pool()
            for pool in pools + pools:
                gpulimit.on_pressure(pool.free)
            answer(1)
            print(called[0], called[1:] == list(pools))
            """,
            "2 True\n",
        )

    def test_many_threads_at_once(self):
        self.asked(
            """
            called = []
            def add(index):
                for _ in range(200):
                    def free(size, device): called.append(index)
                    gpulimit.on_pressure(free)
                    gpulimit.off_pressure(free)
                gpulimit.on_pressure(free)
            threads = [threading.Thread(target=add, args=(index,)) for index in range(8)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            ask(1)
            until(lambda: len(called) == 8)
            print(sorted(called), stand_in.stand_in_registered())
            """,
            "[0, 1, 2, 3, 4, 5, 6, 7] 1\n",
        )

    def test_a_child_begins_without_functions(self):
        self.asked(
            """
            import multiprocessing
            called = []
            gpulimit.on_pressure(lambda size, device: called.append("parent"))
            def worker(queue):
                ask(1)
                queue.put((list(called), threading.active_count()))
                gpulimit.on_pressure(lambda size, device: called.append("child"))
                ask(1)
                until(lambda: called)
                queue.put(sorted(set(called)))
            context = multiprocessing.get_context("fork")
            # A queue of this kind starts no thread, which the worker would count.
            queue = context.SimpleQueue()
            workers = [context.Process(target=worker, args=(queue,)) for _ in range(2)]
            [worker.start() for worker in workers]
            answers = [queue.get() for _ in range(4)]
            [worker.join() for worker in workers]
            print(sorted(map(str, answers)), [worker.exitcode for worker in workers])
            ask(1)
            until(lambda: called)
            print(called)
            """,
            """\
            ['([], 1)', '([], 1)', "['child']", "['child']"] [0, 0]
            ['parent']
            """,
        )

    def test_a_fork_while_the_lock_is_held(self):
        self.asked(
            """
            from gpulimit import _pressure
            _pressure._waiter.lock.acquire()
            child = os.fork()
            if child == 0:
                gpulimit.on_pressure(print)
                os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            _pressure._waiter.lock.release()
            """,
            "7\n",
        )

    def test_a_function_may_fork(self):
        self.asked(
            """
            import subprocess
            statuses = []
            @gpulimit.on_pressure
            def forks(size, device):
                for end in ("", "sys.exit()", "sys.exit(3)", "sys.exit('why')", "1 / 0"):
                    child = os.fork()
                    if child == 0:
                        logging.disable()
                        # The thread of the child's own functions does not keep the child.
                        gpulimit.on_pressure(print)
                        print("child", end=" ")
                        exec(end)
                        return
                    statuses.append(os.waitpid(child, 0)[1] >> 8)
                statuses.append(subprocess.run(["false"]).returncode)
            import logging
            ask(1)
            until(lambda: len(statuses) == 6)
            print(statuses, stand_in.stand_in_registered())
            """,
            "child " * 5 + "[0, 0, 3, 1, 1, 1] 1\n",
        )

    def test_the_end_waits_for_a_call_under_way(self):
        self.asked(
            """
            from gpulimit import _pressure
            begun = threading.Event()
            @gpulimit.on_pressure
            def free(size, device):
                begun.set()
                until(lambda: _pressure._waiter.stopped)
                print("done", flush=True)
            ask(1)
            begun.wait()
            """,
            "done\n",
        )

    def test_the_end_does_not_wait_for_ever(self):
        self.asked(
            """
            begun = threading.Event()
            @gpulimit.on_pressure
            def hangs(size, device):
                begun.set()
                threading.Event().wait()
            ask(1)
            begun.wait()
            """,
            "",
        )

    def test_no_function_is_called_after_the_end_has_begun(self):
        self.asked(
            """
            import atexit
            def late():
                ask(1)
                gpulimit.on_pressure(lambda size, device: print("too late"))
                # The thread that has waited ends soon; a new one would not.
                while threading.active_count() > 1:
                    time.sleep(0.01)
                print(stand_in.stand_in_registered(), threading.active_count())
            # The first to be registered is the last to be called.
            from gpulimit import _pressure
            atexit.unregister(_pressure._at_exit)
            atexit.register(late)
            atexit.register(_pressure._at_exit)
            gpulimit.on_pressure(lambda size, device: print("too late"))
            """,
            "0 1\n",
        )

    def test_an_interrupt_reaches_the_main_thread(self):
        process = self.start(
            """
            gpulimit.on_pressure(lambda size, device: None)
            try:
                print("ready", flush=True)
                # An interrupt just before a long sleep would only be seen after it.
                while True:
                    time.sleep(0.01)
            except KeyboardInterrupt:
                print("interrupted")
            """,
            preload=rig.stand_in(),
        )
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.send_signal(signal.SIGINT)
        out, errors = self.finish(process)
        self.assertEqual((out, errors), ("interrupted\n", ""))

    def test_what_is_no_function_is_refused(self):
        self.asked(
            """
            try:
                gpulimit.on_pressure(3)
            except TypeError as error:
                print(error, stand_in.stand_in_registered())
            """,
            "on_pressure takes a function, not 3 0\n",
        )

    def test_functions_that_cannot_be_called_are_refused(self):
        self.asked(
            """
            async def later(size, device): pass
            for wrong in later, lambda: 0, lambda size: 0, lambda size, device, more: 0:
                try:
                    gpulimit.on_pressure(wrong)
                except TypeError as error:
                    print("async" in str(error), stand_in.stand_in_registered())
            for right in print, lambda *all: 0, lambda size, device, more=0: 0:
                gpulimit.on_pressure(right)
            """,
            "True 0\n" + "False 0\n" * 3,
        )

    def test_a_registration_that_another_part_has_undone_is_renewed(self):
        self.asked(
            """
            called = []
            gpulimit.on_pressure(lambda size, device: called.append(size))
            stand_in.gpulimit_pressure_unregister()
            until(lambda: stand_in.stand_in_registered() == 1)
            ask(5)
            until(lambda: called)
            print(called)
            """,
            "[5]\n",
        )

    def test_a_function_of_atexit_may_add_one(self):
        self.asked(
            """
            import atexit
            atexit.register(lambda: print(gpulimit.on_pressure(print) is print))
            """,
            "True\n",
        )
