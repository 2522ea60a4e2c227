//! The one thread that reads groups and NVML, which can block for long.

use super::access::Scope;
use super::exposition::Page;
use super::reading::{Memory, Reading};
use crate::figures::machines::Machines;
use crate::machine::nvml::Driver;
use crate::words::{environment::env, failure::Failure};
use gpulimit_group::Root;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a request waits for the worker.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of requests that can wait for the worker.
const QUEUE: usize = 64;
/// The age up to which requests share a reading.
const SHARED: Duration = Duration::from_millis(500);
/// How often the worker looks for GPUs that are new or gone.
const GPUS_EVERY: Duration = Duration::from_secs(60);

/// The most readings that clients of metrics keep while they read.
const PAGES: usize = 4;

type Job = Box<dyn FnOnce(&mut Sources) + Send>;

/// The way to the worker.
pub struct Worker(SyncSender<Job>);

/// The worker waits for a file system or for the driver, or has too much to do.
const STUCK: &str = "reading the groups or asking NVML takes too long; try again";
/// The question has made the worker panic, as a clock beyond the year 9999 does.
const FAILED: &str = "reading the groups has failed; the log of the server says why";

impl Worker {
    /// Starts the worker.
    pub fn start(scope: Scope, machines: Option<Machines>) -> Result<Self, Failure> {
        let (sender, jobs) = sync_channel(QUEUE);
        let work = move || work(&mut Sources::new(scope, machines), &jobs);
        let thread = thread::Builder::new().name("reader".into()).spawn(work);
        thread.map_err(|error| Failure::new(format_args!("cannot start a thread: {error}")))?;
        Ok(Self(sender))
    }

    /// Lets the worker answer a question, if it can soon. Fails with the reason for the client.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Sources) -> T + Send + 'static,
    ) -> Result<T, &'static str> {
        let (answer, answered) = oneshot::channel();
        let job = move |sources: &mut Sources| {
            // Nobody waits for the answer any longer if the worker was stuck.
            if !answer.is_closed() {
                let _ = answer.send(question(sources));
            }
        };
        let sent = self.0.try_send(Box::new(job));
        sent.map_err(|_| STUCK)?;
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(answer) => answer.map_err(|_| FAILED),
            Err(_) => Err(STUCK),
        }
    }
}

fn work(sources: &mut Sources, jobs: &Receiver<Job>) {
    loop {
        let job = match sources.keep_nothing() {
            true => jobs.recv().map_err(RecvTimeoutError::from),
            false => jobs.recv_timeout(SHARED),
        };
        let job = match job {
            Ok(job) => job,
            // The reading is old: free it now rather than in the time of the next answer.
            Err(RecvTimeoutError::Timeout) => {
                sources.forget();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // The panic has printed its message. The next question may be answered, for instance when
        // the clock is right again; what earlier rounds have found stays.
        if catch_unwind(AssertUnwindSafe(|| job(sources))).is_err() {
            sources.forget();
        }
    }
}

/// Notes the GPUs that NVML lists, so that they are known when NVML has lost them.
fn note_gpus(driver: &Driver) {
    let gpus = driver.capacities();
    let roots = Root::locate_all(&env).unwrap_or_default();
    roots.iter().for_each(|root| root.note_gpus(&gpus));
}

/// What answers are made of.
pub struct Sources {
    pub scope: Scope,
    /// The machines whose state is shown, if it is not that of this one.
    pub machines: Option<Machines>,
    memory: Memory,
    driver: Option<Driver>,
    driver_since: Instant,
    reading: Option<(Instant, Arc<Reading>)>,
    /// The pages of metrics that clients read, the oldest first, and the last one.
    pages: VecDeque<Arc<Page>>,
}

impl Sources {
    fn new(scope: Scope, machines: Option<Machines>) -> Self {
        Self {
            scope,
            machines,
            memory: Memory::default(),
            driver: Driver::load().ok().inspect(note_gpus),
            driver_since: Instant::now(),
            reading: None,
            pages: VecDeque::new(),
        }
    }

    fn keep_nothing(&self) -> bool {
        self.reading.is_none() && self.pages.is_empty()
    }

    /// Drops the last reading, and the metrics that no client reads.
    pub fn forget(&mut self) {
        self.reading = None;
        self.pages.retain(|page| Arc::weak_count(page) > 0);
    }

    /// Returns the metrics of a reading as [`Self::reading`] returns it. Clients that read slowly
    /// lose their metrics when too many newer ones are read.
    pub fn page(&mut self) -> Result<Weak<Page>, Failure> {
        let reading = match self.scope.processes {
            true => self.reading_with_processes()?,
            false => self.reading()?,
        };
        if let Some(last) = self.pages.back()
            && last.is_of(&reading)
        {
            return Ok(Arc::downgrade(last));
        }
        while self.pages.len() >= PAGES {
            self.pages.pop_front();
        }
        let page = Arc::new(Page::of(reading, self.scope));
        let weak = Arc::downgrade(&page);
        self.pages.push_back(page);
        Ok(weak)
    }

    /// Returns NVML, if it works.
    pub fn driver(&mut self) -> Option<&Driver> {
        if self.driver_since.elapsed() >= GPUS_EVERY {
            // NVML notices a lost GPU only if the old handle is closed first.
            self.driver = None;
            self.driver = Driver::load().ok().inspect(note_gpus);
            self.driver_since = Instant::now();
        }
        self.driver.as_ref()
    }

    /// Returns NVML as it was found last, and what is kept between rounds.
    pub fn parts(&mut self) -> (Option<&Driver>, &mut Memory) {
        (self.driver.as_ref(), &mut self.memory)
    }

    /// Returns such a reading as [`Self::reading`] does, with processes.
    pub fn reading_with_processes(&mut self) -> Result<Arc<Reading>, Failure> {
        let reading = self.reading()?;
        reading.read_processes(self.driver.as_ref(), &mut self.memory);
        Ok(reading)
    }

    /// Returns a reading that is at most half a second old.
    pub fn reading(&mut self) -> Result<Arc<Reading>, Failure> {
        if let Some((time, reading)) = &self.reading
            && time.elapsed() < SHARED
        {
            return Ok(Arc::clone(reading));
        }
        // Free the old one first: two readings of many groups take twice the memory.
        self.forget();
        self.driver();
        let reading = Reading::take(self.scope, self.driver.as_ref(), &mut self.memory)?;
        let reading = Arc::new(reading);
        self.reading = Some((Instant::now(), Arc::clone(&reading)));
        Ok(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::{Builder, Runtime};

    fn started() -> (Worker, Runtime) {
        let scope = Scope {
            public: false,
            processes: false,
        };
        let runtime = Builder::new_current_thread().enable_time().build();
        let worker = Worker::start(scope, None).expect("started");
        (worker, runtime.expect("a runtime"))
    }

    #[test]
    fn a_question_that_panics_costs_only_its_own_answer() {
        let (worker, runtime) = started();
        runtime.block_on(async {
            let panics = worker.ask(|_| panic!("this message is expected"));
            assert_eq!(panics.await, Err::<(), _>(FAILED));
            assert_eq!(worker.ask(|_| 7).await, Ok(7));
        });
    }
}
