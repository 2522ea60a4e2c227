"""Debian's Chromium, without a screen."""

import shutil
import tempfile

from machine import PATIENCE
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

SWITCHES = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run
    --disable-background-networking --disable-component-update --disable-sync
    --disable-dev-shm-usage --window-size=1280,900
"""

# Violations of the content policy are counted from the start of each page.
WATCH = """
    window.violations = [];
    addEventListener("securitypolicyviolation", (event) => {
      violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`);
    });
"""


def is_there():
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


class Browser:
    """A browser with a profile of its own."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="gpulimit-page-profile.")
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for switch in SWITCHES.split():
            options.add_argument(switch)
        options.add_argument(f"--user-data-dir={self.profile}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = Service(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.before_page(WATCH)

    def close(self):
        self.driver.quit()
        shutil.rmtree(self.profile, ignore_errors=True)

    def devtools(self, command, **parameters):
        return self.driver.execute_cdp_cmd(command, parameters)

    def before_page(self, script):
        """Runs a script at the start of each page. Returns what `not_before_page` takes."""
        return self.devtools("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]

    def not_before_page(self, identifier):
        self.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=identifier)

    def size(self, width, height):
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def theme(self, name):
        features = [
            {"name": "prefers-color-scheme", "value": name},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def open(self, address):
        self.driver.get(address)
        self.wait_for_live()

    def wait_for_live(self):
        self.wait("return document.body.dataset.connection === 'live'")
        self.wait("return document.body.dataset.time")

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def run_later(self, script, *arguments):
        """Runs the body of an asynchronous function, and returns its result."""
        body = f"""
            const done = arguments[arguments.length - 1];
            (async () => {{ {script} }})().then(done, (error) => done({{error: String(error)}}));
        """
        self.driver.set_script_timeout(PATIENCE)
        return self.driver.execute_async_script(body, *arguments)

    def wait(self, script, *arguments):
        """Waits until a script returns something true, and returns that."""
        wait = WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05)
        message = f"never true: {script} {arguments}"
        return wait.until(lambda _: self.run(script, *arguments), message)

    def wait_for_text(self, selector, text):
        """Waits until the first such element has this text."""
        script = "return document.querySelector(arguments[0])?.innerText === arguments[1]"
        self.wait(script, selector, text)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def press(self, *keys):
        """Presses keys where the focus is."""
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def complaints(self, excused=()):
        """Returns errors of the console and violations of the content policy."""
        entries = [entry["message"] for entry in self.driver.get_log("browser")]
        found = [text for text in entries if not any(part in text for part in excused)]
        return found + self.run("return window.violations ?? []")
