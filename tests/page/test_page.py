"""The page of `gpulimit serve` in Debian's Chromium, with a live server on the simulated driver.

Run with `scripts/page-tests`.
"""

import os

import browser
from browser import Browser
from machine import GIB, REPOSITORY, TOKEN, Machine, Server, support
from selenium.webdriver.common.keys import Keys

AXE = REPOSITORY / ".cache" / "axe" / "axe.min.js"
#: A part of a command line that a browser would run, if it came to be HTML.
HOSTILE = "<img src=x onerror=bad()>'\"\u202e"
SHOWN = "<img src=x onerror=bad()>'\"\\u202e"

shared = place = None


def setUpModule():
    global shared, place
    if not browser.is_there():
        support.skip(__name__, "Chromium is missing (scripts/test --install)")
    place = support.Place(__name__)
    shared = Browser()


def tearDownModule():
    shared.close()
    place.leave()


def size(count):
    """Formats bytes as the controller does."""
    if count < 1024:
        return f"{count} B"
    for shift, unit in ((10, "KiB"), (20, "MiB"), (30, "GiB"), (40, "TiB")):
        tenths = (count * 10 + (1 << (shift - 1))) >> shift
        if tenths < 10240 or unit == "TiB":
            return f"{tenths // 10}.{tenths % 10} {unit}"


class PageTest(support.Case):
    """A test with a machine, a server and a page."""

    excused = ()

    def setUp(self):
        self.browser = shared
        self.browser.size(1280, 900)
        self.browser.theme("light")
        self.machine = Machine(gpus=2)
        # The page is left before its server ends, whichever machine a test has by then.
        self.addCleanup(lambda: self.machine.close())
        self.addCleanup(self.leave)

    def leave(self):
        """Checks that the page had no errors, and leaves it."""
        complaints = self.browser.complaints(self.excused)
        # A test that is skipped has opened no page.
        self.browser.run("if (location.protocol !== 'about:') localStorage.clear()")
        self.browser.driver.get("about:blank")
        self.assertEqual(complaints, [])

    def lab(self):
        """Makes two groups with a member each."""
        self.machine.gpulimit("create", "lab", "--max", "16G")
        self.machine.gpulimit("create", "lab/alice", "--max", "4G")
        self.alice = self.machine.member("lab/alice", "alices-job")
        self.alice.take(GIB)
        self.bob = self.machine.member("lab", "bobs-job")
        self.bob.take(3 * GIB)

    def serve(self, *options):
        self.server = Server(self.machine, *options).start()
        self.browser.open(self.server.address + ("" if options else f"?token={TOKEN}"))

    def cell(self, group, column):
        """Returns the script that reads a cell of the table of groups."""
        place = f".grid-groups [data-group='{group}'] .cell-{column}"
        return f"document.querySelector(\"{place}\")?.innerText.trim()"

    def wait_for_cell(self, group, column, text):
        self.browser.wait(f"return {self.cell(group, column)} === arguments[0]", text)

    def groups(self):
        """Returns the groups that the server shows, by name."""
        return {group["name"]: group for group in self.server.get("api/v1/state")["groups"]}


class Figures(PageTest):
    def test_the_page_shows_what_the_api_says(self):
        self.lab()
        self.alice.take(4 * GIB, expected=2)
        self.serve()
        state = self.server.get("api/v1/state")
        self.assertEqual(len(state["groups"]), 2)
        for group in state["groups"]:
            gpu = group["gpus"][0]
            self.wait_for_cell(group["name"], "usage", size(gpu["usage"]))
            # A limit that is the group's own is said once.
            self.assertEqual(gpu["effective_max"], gpu["max"])
            self.wait_for_cell(group["name"], "effective", "")
            self.wait_for_cell(group["name"], "max", size(gpu["max"]))
            self.wait_for_cell(group["name"], "peak", size(gpu["peak"]))
            self.wait_for_cell(group["name"], "free", size(gpu["free"]))
            self.wait_for_cell(group["name"], "refusals", str(gpu["refusals"]))
            place = f"[data-group='{group['name']}'] .meter-text"
            title = self.browser.one(place).get_attribute("title")
            self.assertIn(f"{gpu['usage']:,} bytes", title)
        self.assertEqual(state["groups"][1]["gpus"][0]["refusals"], 1)

        cards = [card.text for card in self.browser.all(".gpu")]
        self.assertEqual(len(cards), len(state["gpus"]))
        for card, gpu in zip(cards, state["gpus"]):
            self.assertIn(f"GPU {gpu['index']}", card)
            for text in (gpu["name"], size(gpu["free"]), size(gpu["others"])):
                self.assertIn(text, card)

        rows = {row.get_attribute("data-pid"): row.text for row in self.browser.all("[data-pid]")}
        self.assertEqual(set(rows), {str(process["pid"]) for process in state["processes"]})
        for process in state["processes"]:
            row = rows[str(process["pid"])]
            for text in (process["user"], process["group"], process["command"]):
                self.assertIn(text, row)
            for part in ("total", "allocations", "pools", "managed", "driver"):
                self.assertIn(size(process[part]), row)

    def test_suspended_memory_and_events_of_unknown_kinds_are_shown(self):
        """Both are put into the server's answers."""
        self.lab()
        self.alice.take(4 * GIB, expected=2)
        script = """
            const parse = JSON.parse;
            const change = (key, value) =>
              key === "suspended" ? 2 * 2 ** 30 :
              key === "state" && value === "running" ? "suspended" :
              key === "event" && value === "refusal" ? "new-kind" : value;
            JSON.parse = (text) => parse(text, change);
            Response.prototype.json = async function () { return JSON.parse(await this.text()); };
        """
        identifier = self.browser.before_page(script)
        self.addCleanup(self.browser.not_before_page, identifier)
        self.serve()
        self.browser.wait("return document.querySelector('#event-list .event')")
        for place, text in (
            (".grid-processes .tag-suspended", "suspended, 2.0 GiB on the host"),
            (".grid-groups .tag-suspended", "2.0 GiB suspended"),
            ("#event-list .tag", "new-kind"),
        ):
            self.assertEqual(self.browser.one(place).text, text)
        self.assertIn("pid ", self.browser.one("#event-list .event-text").text)
        # Events of this kind can be hidden, as those of other kinds.
        self.browser.run("document.querySelector(\"#event-kinds [value='new-kind']\").click()")
        self.browser.wait("return document.querySelectorAll('#event-list .event').length === 0")

    def test_the_page_follows_changes(self):
        self.lab()
        self.serve()
        usage = self.groups()["lab/alice"]["gpus"][0]["usage"]
        for _ in range(2):
            self.alice.take(GIB)
            usage += GIB
            self.wait_for_cell("lab/alice", "usage", size(usage))
        self.machine.gpulimit("create", "late", "--max", "1G")
        self.wait_for_cell("late", "max", "1.0 GiB")
        self.machine.gpulimit("rm", "late")
        self.browser.wait(f"return {self.cell('late', 'max')} === undefined")

    def test_events_appear_and_can_be_filtered_by_kind(self):
        self.lab()
        self.serve()
        self.alice.take(4 * GIB, expected=2)
        entry = self.browser.wait("return document.querySelector('#event-list .event-refusal')")
        self.assertIn("was refused 4.0 GiB", entry.text)
        self.assertIn("lab/alice", entry.text)
        self.assertIn(f"pid {self.alice.process.pid} of ", entry.text)
        # The reaction to the choice is immediate.
        self.browser.one("#event-kinds input[value=refusal]").click()
        self.assertEqual(self.browser.all("#event-list .event-refusal"), [])
        self.browser.one("#event-kinds input[value=refusal]").click()
        self.assertEqual(len(self.browser.all("#event-list .event-refusal")), 1)

    def test_equal_events_are_counted_each(self):
        """An entry of the server's answer stands for 200 refusals, most of the last hour."""
        self.lab()
        self.alice.take(4 * GIB, expected=2)
        script = """
            const now = Date.now();
            const at = (ago) => new Date(now - ago).toISOString();
            const change = (key, value) =>
              value?.event === "refusal"
                ? {...value, count: 200, time: at(3_700_000), until: at(1_000)} : value;
            Response.prototype.json = async function () {
              return JSON.parse(await this.text(), change);
            };
        """
        identifier = self.browser.before_page(script)
        self.addCleanup(self.browser.not_before_page, identifier)
        self.serve()
        self.browser.wait_for_text("#sum-refusals", "200")
        entry = self.browser.one("#event-list .event-refusal")
        self.assertIn("charged, 200 times", entry.text)
        self.assertIn("the first time at", entry.get_attribute("textContent"))
        self.browser.wait_for_text("#event-count", "200 events of the last day")

    def test_refusals_of_a_process_are_one_entry(self):
        """The server's answer has each refusal three times, a second apart."""
        self.lab()
        self.alice.take(4 * GIB, expected=2)
        self.bob.take(40 * GIB, expected=2)
        script = """
            const again = (event) => [0, 1, 2].map((ago) => ({
              ...event, number: event.number + 100 * ago,
              time: new Date(Date.parse(event.time) - 1000 * ago).toISOString()}));
            Response.prototype.json = async function () {
              const said = JSON.parse(await this.text());
              return said.events ? {...said, events: said.events.flatMap(again)} : said;
            };
        """
        identifier = self.browser.before_page(script)
        self.addCleanup(self.browser.not_before_page, identifier)
        self.serve()
        self.browser.wait_for_text("#event-count", "6 events of the last day")
        entries = [entry.text for entry in self.browser.all("#event-list .event-refusal")]
        self.assertEqual(len(entries), 2)
        # Both can have the same time, which then decides no order.
        for size_ in ("refused 40.0 GiB", "refused 4.0 GiB"):
            (entry,) = (entry for entry in entries if size_ in entry)
            self.assertIn(", 3 times", entry)

    def test_users_have_sums(self):
        self.lab()
        self.serve()
        state = self.server.get("api/v1/state")
        total = sum(process["total"] for process in state["processes"])
        user = state["processes"][0]["user"]
        row = self.browser.wait("return document.querySelector('.grid-users .grid-body .grid-row')")
        for text in (user, "2", size(total)):
            self.assertIn(text, row.text)
        self.browser.one(".grid-users .grid-body button").click()
        self.browser.wait(
            "return document.getElementById('process-filter').value === arguments[0]", user
        )

    def test_the_address_keeps_the_state(self):
        self.lab()
        self.serve()
        self.browser.one("[data-group='lab'] .group-name").click()
        self.browser.wait_for_text(".chart h3", "lab on GPU 0")
        self.browser.run("document.querySelector('[value=\"1h\"]').click()")
        self.browser.one("#group-filter").send_keys("lab")
        self.browser.one("nav a[href='#events']").click()
        self.browser.wait("return location.hash.includes('group=lab')")
        self.browser.driver.refresh()
        self.browser.wait_for_text(".chart h3", "lab on GPU 0")
        for script, value in (
            ("document.querySelector('#ranges input:checked').value", "1h"),
            ("document.getElementById('group-filter').value", "lab"),
        ):
            self.assertEqual(self.browser.run(f"return {script}"), value)
        self.browser.one("#close-group").click()
        self.browser.wait("return !location.hash.includes('group=')")

    def test_waiting_processes_are_shown(self):
        self.machine.gpulimit("create", "lab", "--max", "4G", "on_limit=wait", "wait_timeout=1h")
        holder = self.machine.member("lab")
        holder.take(2 * GIB)
        waiter = self.machine.member("lab", "the-waiter")
        second = self.machine.member("lab")
        self.serve()
        self.browser.wait("return !document.getElementById('no-waiters').hidden")
        waiter.ask(f"take {2 * GIB}")
        self.browser.wait("return document.querySelector('.waiter')")
        # The state after this one may replace the entry's text, so read it in one go.
        text = self.browser.run("return document.querySelector('.waiter').innerText")
        self.assertRegex(text, r"lab\s+waits \d+ s for 2\.0 GiB of GPU 0")
        self.assertIn("the-waiter", text)
        # Who has the memory, and when the request gives up.
        self.assertRegex(text, rf"held: 2\.\d GiB by \S+ \(pid {holder.process.pid}\)")
        self.assertRegex(text, r"gives up in (59 min|1 h 0 min)")
        second.ask(f"take {3 * GIB}")
        self.browser.wait("return document.querySelectorAll('.waiter').length === 2")
        texts = "return [...document.querySelectorAll('.waiter')].map((one) => one.innerText)"
        for place, said in enumerate(self.browser.run(texts), 1):
            self.assertIn(f"{place} of 2 in line", said)
        second.end()
        self.browser.wait("return document.querySelectorAll('.waiter').length === 1")
        self.wait_for_cell("lab", "waiting", "1")
        self.browser.wait(f"return {self.cell('lab', 'state')}.startsWith('waits for 2.0 GiB')")
        holder.free()
        self.browser.wait("return !document.getElementById('no-waiters').hidden")

    def test_curves_have_a_table_with_the_same_figures(self):
        self.lab()
        self.serve()
        self.browser.one("[data-group='lab'] .group-name").click()
        self.browser.wait_for_text(".chart h3", "lab on GPU 0")
        self.browser.run("document.querySelector('.chart details').open = true")
        self.browser.wait("return document.querySelectorAll('.chart tbody tr').length > 500")
        highest = self.browser.run("return document.querySelector('.chart tbody td').innerText")
        history = self.server.get("api/v1/history?group=lab&since=10m")["histories"][0]
        self.assertEqual(highest, size(history["periods"][-1]["max"]))
        ink = """
            const canvas = document.querySelector('.chart canvas');
            const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            return data.some((value, at) => at % 4 === 3 && value > 0);
        """
        self.assertTrue(self.browser.run(ink), "the canvas is empty")
        for value in ("1h", "168h"):
            self.browser.run("document.querySelector(`[value='${arguments[0]}']`).click()", value)
            fetched = "return document.getElementById('charts').dataset.range === arguments[0]"
            self.browser.wait(fetched, value)
        self.browser.one("#close-group").click()
        self.browser.wait_for_text(".chart h3", "GPU 0: lab")

    def test_the_public_page_says_why_it_has_no_processes(self):
        self.lab()
        self.serve("--public")
        self.assertFalse(self.browser.one("#process-table").is_displayed())
        self.assertIn("--public", self.browser.one("#processes-public").text)
        groups = self.groups()
        self.assertEqual(self.browser.one("#sum-groups").text, str(len(groups)))
        if os.geteuid() == 0:
            self.assertEqual(set(groups), {"lab", "lab/alice"})
            self.assertEqual(self.browser.one("#sum-processes").text, "2")
            self.assertEqual(len(self.browser.all(".grid-groups [data-group]")), 2)
        self.assertNotIn("alices-job", self.browser.driver.page_source)


class Lost(PageTest):
    excused = ("net::ERR_", "status of 401")

    def test_the_page_survives_a_restart_of_the_server(self):
        self.lab()
        self.serve()
        self.server.stop()
        self.browser.wait("return document.body.dataset.connection === 'reconnecting'")
        self.assertIn("Stale data from", self.browser.one("#notice-text").text)
        self.assertEqual(self.browser.one("#connection-text").text, "Reconnecting…")
        self.browser.wait("return /data is \\d+ s old/.test(document.body.innerText)")
        # What the page knows stays in view.
        self.assertEqual(len(self.browser.all(".grid-groups [data-group]")), 2)
        self.alice.take(GIB)
        self.server.start()
        self.browser.wait_for_live()
        usage = self.groups()["lab/alice"]["gpus"][0]["usage"]
        self.wait_for_cell("lab/alice", "usage", size(usage))
        self.assertFalse(self.browser.one("#notice").is_displayed())


    def test_a_server_with_another_token_is_told_from_a_dead_one(self):
        self.lab()
        self.serve()
        self.server.stop()
        (self.machine.folder / "token").write_text(TOKEN[::-1])
        self.server.start()
        notice = "return document.getElementById('notice-text').innerText.includes('its token')"
        self.browser.wait(notice)
        self.assertEqual(self.browser.one("#connection-text").text, "Reconnecting…")


class Hostile(PageTest):
    def test_hostile_commands_are_text(self):
        self.machine.gpulimit("create", "lab", "--max", "4G")
        member = self.machine.member("lab", HOSTILE)
        member.take(GIB)
        member.take(4 * GIB, expected=2)
        self.serve()
        self.browser.wait("return document.querySelector('#event-list .command')")
        command = self.browser.one(".grid-body .cell-command bdi").get_attribute("textContent")
        # The ledger keeps no invisible character of a command.
        self.assertIn(HOSTILE.replace("\u202e", "?"), command)
        self.assertEqual(self.browser.all("main img"), [])

    def test_hostile_names_are_text(self):
        """The library refuses such names of groups, so they are put into the server's answer."""
        self.lab()
        script = """
            const parse = JSON.parse;
            const rename = (key, value) =>
              value === "lab" && (key === "name" || key === "group") ? %r :
              key === "kind" ? "job" : value;
            JSON.parse = (text) => parse(text, rename);
        """
        hostile = HOSTILE + "x" * 300
        identifier = self.browser.before_page(script % hostile)
        self.addCleanup(self.browser.not_before_page, identifier)
        self.serve()
        for place in (".legend-name", ".group-name", ".grid-processes .cell-group bdi"):
            texts = [found.get_attribute("textContent") for found in self.browser.all(place)]
            self.assertTrue(any(SHOWN in text for text in texts), (place, texts))
        self.assertEqual(self.browser.all("main img"), [])
        self.browser.size(360, 800)
        self.assert_fits(360)

    def assert_fits(self, width):
        found = self.browser.run("return document.documentElement.scrollWidth")
        self.assertLessEqual(found, width)


class Form(PageTest):
    def test_nothing_overflows_from_phone_to_4k(self):
        self.lab()
        self.serve()
        self.browser.one("[data-group='lab'] .group-name").click()
        self.browser.wait("return document.querySelector('.chart canvas')")
        for width in (360, 1280, 3840):
            self.browser.size(width, 900)
            wide = """
                const scrolled = '.grid, .unseen, .skip, .chart-canvas';
                const visible = [...document.querySelectorAll('body *')].filter(
                  (one) => one.checkVisibility() && !one.closest(scrolled));
                return [document.documentElement.scrollWidth, ...visible.flatMap((one) => {
                  const {left, right} = one.getBoundingClientRect();
                  return left < -1 || right > innerWidth + 1 ? [one.outerHTML.slice(0, 80)] : [];
                })];
            """
            found, *outside = self.browser.run(wide)
            self.assertLessEqual(found, width)
            self.assertEqual(outside, [], width)

    def test_four_gpus_are_a_row_on_a_laptop_and_a_line_each_on_a_phone(self):
        self.machine.close()
        self.machine = Machine(gpus=4)
        self.lab()
        self.serve()
        boxes = """
            return [...document.querySelectorAll('.gpu')].map((card) => {
              const {top, height} = card.getBoundingClientRect();
              return [Math.round(top), height];
            });
        """
        self.browser.wait("return document.querySelectorAll('.gpu').length === 4")
        for width in (1280, 1366, 1440, 3840):
            self.browser.size(width, 900)
            tops = {top for top, _ in self.browser.run(boxes)}
            self.assertEqual(len(tops), 1, width)
        self.browser.size(390, 900)
        found = self.browser.run(boxes)
        self.assertEqual(len({top for top, _ in found}), 4)
        self.assertLess(max(height for _, height in found), 48)

    def test_axe_finds_nothing_serious(self):
        if not AXE.exists():
            self.skipTest("axe-core is missing (scripts/wheels)")
        self.lab()
        self.alice.take(4 * GIB, expected=2)
        self.serve()
        self.browser.one("[data-group='lab'] .group-name").click()
        self.browser.wait("return document.querySelector('.chart canvas')")
        self.browser.wait("return document.querySelector('#event-list .event')")
        self.browser.run(AXE.read_text() + ";window.axe = axe;")
        for theme in ("light", "dark"):
            self.browser.theme(theme)
            for scene in ("", "document.getElementById('help').showModal()"):
                self.browser.run(scene)
                self.assertEqual(self.violations(), [], (theme, scene))
            self.browser.run("document.getElementById('help').close()")

    def violations(self):
        found = self.browser.run_later("return axe.run(document, {resultTypes: ['violations']})")
        grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        return [(one["id"], [node["html"][:100] for node in one["nodes"]]) for one in grave]

    def test_the_themes_differ(self):
        self.lab()
        self.serve()
        back = "return getComputedStyle(document.documentElement).backgroundColor"
        light = self.browser.run(back)
        self.browser.theme("dark")
        dark = self.browser.run(back)
        self.assertNotEqual(light, dark)
        # auto, light, dark
        for expected in (light, dark, dark):
            self.browser.one("#theme").click()
            self.assertEqual(self.browser.run(back), expected)

    def test_thousands_of_rows_are_few_elements(self):
        """The groups and processes are put into the server's answer."""
        self.lab()
        script = """
            const parse = JSON.parse;
            JSON.parse = (text) => {
              const state = parse(text);
              const [first] = state.groups ?? [];
              for (let at = 0; first && at < 998; at += 1) {
                state.groups.push({...first, kind: "job", name: `g${String(at).padStart(3, "0")}`});
              }
              const [process] = state.processes ?? [];
              for (let at = 0; process && at < 4094; at += 1) {
                state.processes.push({...process, pid: 1e6 + at});
              }
              return state;
            };
        """
        identifier = self.browser.before_page(script)
        self.addCleanup(self.browser.not_before_page, identifier)
        self.serve()
        rows = """
            const table = document.querySelector(`#${arguments[0]} [role=table]`);
            return table.ariaRowCount === arguments[1];
        """
        self.browser.wait(rows, "group-table", "1001")
        self.browser.wait(rows, "process-table", "4097")
        self.assertLess(len(self.browser.all(".grid-body .grid-row")), 100)
        for place, last in (("group-table", "g997"), ("process-table", "1004093")):
            script = "document.querySelector(`#${arguments[0]} .grid-scroller`).scrollTop = 1e6"
            self.browser.run(script, place)
            end = "return document.getElementById(arguments[0]).innerText.includes(arguments[1])"
            self.browser.wait(end, place, last)
        self.browser.one("#group-filter").send_keys("g12")
        self.browser.wait(rows, "group-table", "11")
        self.assertEqual(self.browser.one("#group-count").text, "10 of 1,000 groups")


class Keyboard(PageTest):
    def focused(self):
        focused = "const one = document.activeElement; return one.id || one.className"
        return self.browser.run(focused)

    def test_keys(self):
        self.lab()
        self.serve()
        press = self.browser.press
        press(Keys.TAB)
        self.assertEqual(self.focused(), "skip")
        press(Keys.ENTER)
        self.browser.wait("return document.activeElement.id === 'main'")
        press("/")
        self.assertEqual(self.focused(), "group-filter")
        press("alice")
        self.browser.wait_for_text("#group-count", "1 of 2 groups")
        press(Keys.ESCAPE)
        self.assertEqual(self.browser.one("#group-count").text, "2 groups")
        press(Keys.ESCAPE, "?")
        self.browser.wait("return document.getElementById('help').open")
        press(Keys.ESCAPE)
        self.browser.wait("return !document.getElementById('help').open")
        press("]")
        self.assertTrue(self.browser.one("#ranges [value='1h']").is_selected())
        press("t")
        self.assertEqual(self.focused(), "groups")
        press("p")
        self.assertEqual(self.browser.run("return document.body.dataset.connection"), "paused")
        press("p")
        self.assertEqual(self.browser.run("return document.body.dataset.connection"), "live")
        # Without single keys only the filter gets the text.
        self.browser.run("document.getElementById('shortcuts').click()")
        press("?")
        self.assertFalse(self.browser.run("return document.getElementById('help').open"))

    def test_groups_fold_sort_and_open_by_keyboard(self):
        self.lab()
        self.serve()
        count = "return document.querySelectorAll('.grid-groups [data-group]').length"
        self.browser.run("document.querySelector('.fold:not([hidden])').focus()")
        self.browser.press(Keys.ENTER)
        self.assertEqual(self.browser.run(count), 1)
        self.assertEqual(self.focused(), "fold")
        self.browser.press(Keys.ENTER)
        self.assertEqual(self.browser.run(count), 2)
        self.browser.run("document.querySelector('.grid-head .cell-usage button').focus()")
        self.browser.press(Keys.ENTER)
        head = self.browser.one(".grid-head .cell-usage")
        self.assertEqual(head.get_attribute("aria-sort"), "descending")
        self.browser.press(Keys.ENTER)
        self.assertEqual(head.get_attribute("aria-sort"), "ascending")
        first = "return document.querySelector('.grid-groups [data-group]').dataset.group"
        self.assertEqual(self.browser.run(first), "lab/alice")
        self.browser.run("document.querySelector('.group-name').focus()")
        self.browser.press(Keys.ENTER)
        self.assertEqual(self.browser.one("#curves-title").text, "Curves of lab/alice")

    def test_tab_reaches_everything_with_a_visible_focus(self):
        self.lab()
        self.serve()
        look = """
            const one = document.activeElement;
            const shown = one.matches('.ranges input') ? one.nextElementSibling
              : one.matches('.chip input') ? one.parentElement : one;
            const {outlineStyle, outlineWidth} = getComputedStyle(shown);
            const name = one === document.body ? 'BODY' : one.innerText || one.ariaLabel;
            return [one.id || one.value || name || one.tagName,
                    outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2];
        """
        seen = []
        self.browser.run("document.body.focus()")
        for _ in range(120):
            self.browser.press(Keys.TAB)
            name, visible = self.browser.run(look)
            if name in ("BODY", "Skip to the content") and seen:
                break
            self.assertTrue(visible, name)
            seen.append(name)
        for name in ("pause", "theme", "help-open", "group-filter", "group-gpu", "fold-all", "lab"):
            self.assertIn(name, seen)
        for name in ("10m", "refusal", "limits", "process-filter", "Command"):
            self.assertIn(name, seen)
