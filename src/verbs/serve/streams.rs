//! Server-sent events: the state whenever it has changed, and new events of groups.

use super::events;
use super::peer::Peer;
use super::places::{Lost, Place, Places};
use super::state::State;
use super::worker::Worker;
use hyper::body::Bytes;
use serde_json::Value;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

/// The most streams at a time. A user with fewer of them takes the place of another user's.
const STREAMS: usize = 32;
/// Number of messages that wait for a slow client. A client that is slower is dropped.
const QUEUE: usize = 16;
/// Number of bytes that wait for a slow client before the last message. Clients share the messages.
const BYTES: usize = 16 << 20;
/// How often the state is compared.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time without a message. A client that has gone keeps its place until the server
/// writes to it: it looks like one that only sends nothing more.
const SILENCE: Duration = Duration::from_secs(2);

/// The open streams, and the places for more.
pub struct Streams {
    open: Mutex<Open>,
    /// While a place is taken, the server collects events.
    places: Arc<Places>,
}

#[derive(Default)]
struct Open {
    streams: Vec<(Sender<Bytes>, (Place, Lost))>,
    /// The state that all streams have; empty if some have another.
    state: String,
    /// The lengths of the last messages to all streams, the newest first.
    lengths: VecDeque<usize>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            places: Arc::new(Places::new(STREAMS)),
        }
    }
}

impl Streams {
    /// Takes a place for a stream that will be opened. Returns `None` if there are too many.
    pub fn place(&self, peer: Peer) -> Option<(Place, Lost)> {
        self.drop_closed();
        self.places.take(peer)
    }

    /// Opens a stream, which begins with this state.
    pub fn open(&self, state: &State, place: (Place, Lost)) -> Receiver<Bytes> {
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
        streams.retain_mut(|(stream, (_, lost))| {
            !stream.is_closed() && lost.try_recv() == Err(TryRecvError::Empty)
        });
    }

    /// Returns whether no stream is open or about to be opened.
    fn is_idle(&self) -> bool {
        self.drop_closed();
        self.places.is_empty()
    }

    /// Sends a message to all streams, and drops those that have too many or too long ones.
    fn send(&self, text: String) {
        let bytes = Bytes::from(text);
        let open = &mut *self.lock();
        let lengths = &open.lengths;
        open.streams.retain(|(stream, _)| {
            // The first message of a stream counts as long as another one.
            let waiting = lengths.iter().take(QUEUE - stream.capacity());
            waiting.sum::<usize>() <= BYTES && stream.try_send(bytes.clone()).is_ok()
        });
        open.lengths.push_front(bytes.len());
        open.lengths.truncate(QUEUE);
    }

    /// Sends the events of a round, and its state unless all streams have it. One message has them
    /// all: clients get no time to read between two messages of a round. Returns whether it was
    /// sent.
    fn send_round(&self, events: &[(String, Value)], state: Option<State>) -> bool {
        let mut text = String::new();
        for (time, event) in events {
            text += &message("event", Some(time), &event.to_string());
        }
        if let Some(state) = state.filter(|state| self.lock().state != state.rest) {
            text += &message("state", None, &state.text());
            self.lock().state = state.rest;
        }
        let is_new = !text.is_empty();
        if is_new {
            self.send(text);
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
        // Wait for the answer, however long it takes: it has events that no other answer has.
        let mut news = pin!(async {
            ticks.tick().await;
            let is_idle = streams.is_idle();
            let ask = worker.ask_patiently(move |sources| {
                if is_idle {
                    sources.watch = None;
                    return None;
                }
                let events = events::news(sources);
                Some((State::read(sources), events))
            });
            ask.await
        });
        let news = loop {
            match timeout_at(sent + SILENCE, &mut news).await {
                Ok(news) => break news,
                Err(_) => {
                    streams.send(": no change\n\n".into());
                    sent = Instant::now();
                }
            }
        };
        if let Ok(Some((state, events))) = news
            && streams.send_round(&events, state.ok())
        {
            sent = Instant::now();
        }
    }
}

/// Returns a message. JSON has no line feeds outside of strings, and escapes those in strings.
fn message(kind: &str, id: Option<&str>, data: &str) -> String {
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    format!("event: {kind}\n{id}data: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(streams: &Streams) -> Receiver<Bytes> {
        let (sender, receiver) = channel(QUEUE);
        let place = streams.place(Peer(None)).expect("room");
        streams.lock().streams.push((sender, place));
        receiver
    }

    #[test]
    fn only_a_stream_that_does_not_read_is_dropped() {
        let streams = Streams::default();
        // Many short messages, then few long ones.
        for (length, most) in [(1, QUEUE), (BYTES / 4, 5)] {
            let (mut slow, mut quick) = (open(&streams), open(&streams));
            for _ in 0..2 * QUEUE {
                streams.send("x".repeat(length));
                assert_eq!(quick.try_recv().map(|bytes| bytes.len()), Ok(length));
            }
            let got = std::iter::from_fn(|| slow.try_recv().ok()).count();
            assert_eq!(got, most, "messages of {length} bytes");
            assert!(slow.is_closed() && !quick.is_closed());
        }
    }

    #[test]
    fn a_user_with_all_streams_loses_one_to_another_user() {
        let streams = Streams::default();
        let open = |user| {
            let (sender, receiver) = channel(QUEUE);
            let place = streams.place(Peer(Some(user)))?;
            streams.lock().streams.push((sender, place));
            Some(receiver)
        };
        let many: Vec<_> = std::iter::from_fn(|| open(1)).collect();
        assert_eq!(many.len(), STREAMS);
        let other = open(2).expect("a place");
        assert!(!streams.is_idle());
        let closed: Vec<bool> = many.iter().map(Receiver::is_closed).collect();
        assert_eq!(
            closed,
            [&[true][..], &[false; STREAMS - 1]].concat(),
            "the oldest"
        );
        assert!(!other.is_closed());
        drop((many, other));
        assert!(streams.is_idle());
    }

    #[test]
    fn the_events_of_a_round_are_one_message() {
        let streams = Streams::default();
        let mut stream = open(&streams);
        let event = |number| ("2026-01-01T00:00:00Z".into(), Value::from(number));
        let events: Vec<(String, Value)> = (0..1000).map(event).collect();
        assert!(streams.send_round(&events, None));
        let bytes = stream.try_recv().expect("a message");
        let text = str::from_utf8(&bytes).expect("UTF-8");
        assert_eq!(text.matches("event: event\n").count(), 1000);
        assert!(text.ends_with("data: 999\n\n"), "{text}");
        assert!(!streams.send_round(&[], None), "nothing is new");
    }
}
