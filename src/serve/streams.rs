//! Server-sent events: the state whenever it has changed, and new events of groups.

use super::events;
use super::state::State;
use super::worker::Worker;
use hyper::body::Bytes;
use serde_json::Value;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

/// The most streams at a time.
const STREAMS: usize = 32;
/// Number of messages that wait for a slow client. A client that is slower is dropped.
const QUEUE: usize = 16;
/// How often the state is compared.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time without a message. A client that has gone keeps its place until the server
/// writes to it: it looks like one that only sends nothing more.
const SILENCE: Duration = Duration::from_secs(2);

/// The open streams, and the places for more.
pub struct Streams {
    open: Mutex<Open>,
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct Open {
    streams: Vec<(Sender<Bytes>, Place)>,
    /// The state that all streams have; empty if some have another.
    state: String,
}

/// The place of a stream. While a place is taken, the server collects events.
pub struct Place(#[expect(dead_code, reason = "dropping it frees the place")] OwnedSemaphorePermit);

impl Default for Streams {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            places: Arc::new(Semaphore::new(STREAMS)),
        }
    }
}

impl Streams {
    /// Takes a place for a stream that will be opened. Returns `None` if there are too many.
    pub fn place(&self) -> Option<Place> {
        self.drop_closed();
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.ok().map(Place)
    }

    /// Opens a stream, which begins with this state.
    pub fn open(&self, state: &State, place: Place) -> Receiver<Bytes> {
        let (sender, receiver) = channel(QUEUE);
        let first = format!("retry: 1000\n\n{}", message("state", None, &state.text()));
        // The queue is empty, and its other end is open.
        let _ = sender.try_send(first.into());
        let mut open = self.lock();
        // The next round must correct this state if it is that of a moment.
        if open.state != state.rest {
            open.state.clear();
        }
        open.streams.push((sender, place));
        receiver
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drop_closed(&self) {
        let streams = &mut self.lock().streams;
        streams.retain(|(stream, _)| !stream.is_closed());
    }

    /// Returns whether no stream is open or about to be opened.
    fn is_idle(&self) -> bool {
        self.drop_closed();
        self.places.available_permits() == STREAMS
    }

    /// Sends a message to all streams, and drops those whose queues are full.
    fn send(&self, text: String) {
        let bytes = Bytes::from(text);
        let streams = &mut self.lock().streams;
        streams.retain(|(stream, _)| stream.try_send(bytes.clone()).is_ok());
    }

    /// Sends a state to all streams, unless they have it. Returns whether it was sent.
    fn send_state(&self, state: State) -> bool {
        let is_new = self.lock().state != state.rest;
        if is_new {
            self.send(message("state", None, &state.text()));
            self.lock().state = state.rest;
        }
        is_new
    }
}

/// Sends news to all streams for as long as the server runs.
pub async fn run(streams: Arc<Streams>, worker: Arc<Worker>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent = Instant::now();
    loop {
        ticks.tick().await;
        let is_idle = streams.is_idle();
        // Wait for the answer, however long it takes: it has events that no other answer has.
        let mut news = pin!(worker.ask_patiently(move |sources| {
            if is_idle {
                sources.watch = None;
                return None;
            }
            let events = events::news(sources);
            Some((State::read(sources), events))
        }));
        let news = loop {
            match timeout_at(sent + SILENCE, &mut news).await {
                Ok(news) => break news,
                Err(_) => {
                    streams.send(": no change\n\n".into());
                    sent = Instant::now();
                }
            }
        };
        if let Ok(Some((state, events))) = news {
            for (time, event) in &events {
                streams.send(of_event(time, event));
            }
            if let Ok(state) = state
                && streams.send_state(state)
            {
                sent = Instant::now();
            }
        }
    }
}

fn of_event(time: &str, event: &Value) -> String {
    message("event", Some(time), &event.to_string())
}

/// Returns a message. JSON has no line feeds outside of strings, and escapes those in strings.
fn message(kind: &str, id: Option<&str>, data: &str) -> String {
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    format!("event: {kind}\n{id}data: {data}\n\n")
}
