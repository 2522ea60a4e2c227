//! The one thread that reads groups and NVML, which can block for long.

use super::Scope;
use super::reading::{Memory, Reading};
use crate::events::Watch;
use crate::failure::Failure;
use crate::nvml::Driver;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
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

type Job = Box<dyn FnOnce(&mut Sources) + Send>;

/// The way to the worker.
pub struct Worker(SyncSender<Job>);

/// The worker does not answer: it waits for a file system or for the driver, or has too much to do.
#[derive(Debug)]
pub struct Stuck;

impl Worker {
    /// Starts the worker.
    pub fn start(scope: Scope) -> Result<Self, Failure> {
        let (sender, jobs) = sync_channel(QUEUE);
        let work = move || work(&mut Sources::new(scope), &jobs);
        let thread = thread::Builder::new().name("reader".into()).spawn(work);
        thread.map_err(|error| Failure::new(format_args!("cannot start a thread: {error}")))?;
        Ok(Self(sender))
    }

    /// Lets the worker answer a question.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Sources) -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let (answer, answered) = oneshot::channel();
        let job = move |sources: &mut Sources| {
            // Nobody waits for the answer any longer if the worker was stuck.
            if !answer.is_closed() {
                let _ = answer.send(question(sources));
            }
        };
        self.0.try_send(Box::new(job)).map_err(|_| Stuck)?;
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(Stuck),
        }
    }
}

fn work(sources: &mut Sources, jobs: &Receiver<Job>) {
    for job in jobs {
        job(sources);
    }
}

/// What answers are made of.
pub struct Sources {
    pub scope: Scope,
    /// The events that streams have not got yet; `None` without streams.
    pub watch: Option<Watch>,
    memory: Memory,
    driver: Option<Driver>,
    driver_since: Instant,
    reading: Option<(Instant, Arc<Reading>)>,
}

impl Sources {
    fn new(scope: Scope) -> Self {
        Self {
            scope,
            watch: None,
            memory: Memory::default(),
            driver: Driver::load().ok(),
            driver_since: Instant::now(),
            reading: None,
        }
    }

    /// Returns NVML, if it works.
    pub fn driver(&mut self) -> Option<&Driver> {
        if self.driver_since.elapsed() >= GPUS_EVERY {
            self.driver = Driver::load().ok();
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
        reading.read_processes(&mut self.memory);
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
        self.reading = None;
        self.driver();
        let reading = Reading::take(self.scope, self.driver.as_ref(), &mut self.memory)?;
        let reading = Arc::new(reading);
        self.reading = Some((Instant::now(), Arc::clone(&reading)));
        Ok(reading)
    }
}
