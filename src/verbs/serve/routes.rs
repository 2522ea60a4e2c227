//! What the server has at which path.

use super::access::{Access, Admitted, Refusal, Scope};
use super::answer::{self, Answer, JSON};
use super::assets;
use super::body::Content;
use super::exposition::{self, Text};
use super::history::Trouble;
use super::peer::Peer;
use super::places::Place;
use super::state::State;
use super::streams::Streams;
use super::worker::{Sources, Unanswered, Worker};
use super::{events, history, query};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CACHE_CONTROL, HeaderValue, LOCATION, SET_COOKIE};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use serde_json::Value;
use std::sync::Arc;

/// What all connections share.
pub struct Site {
    pub access: Access,
    pub scope: Scope,
    pub worker: Arc<Worker>,
    pub streams: Arc<Streams>,
}

impl Site {
    /// Answers a request.
    pub async fn answer(&self, head: Parts, place: &Place) -> Answer {
        let admitted = match self.access.admit(&head) {
            Ok(admitted) => admitted,
            Err(Refusal(status, text)) => return answer::error(status, text),
        };
        if self.access.token.is_some() && !place.show_token() {
            return answer::error(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many connections are open; close some",
            );
        }
        if admitted == Admitted::ByAddress {
            return self.with_cookie();
        }
        let query = head.uri.query().unwrap_or("").to_owned();
        match head.uri.path() {
            "/metrics" => self.metrics().await,
            "/api/v1/state" => match query::check(&query, &[]) {
                Ok(()) => self.state().await,
                Err(why) => answer::error(StatusCode::BAD_REQUEST, &why),
            },
            "/api/v1/history" => {
                let ask = self
                    .worker
                    .ask(move |sources| history::json(sources, &query));
                self.json(ask.await)
            }
            "/api/v1/events" if accepts_events(&head) => match query::check(&query, &[]) {
                Ok(()) => self.stream(head.method == Method::HEAD, place.peer).await,
                Err(why) => answer::error(StatusCode::BAD_REQUEST, &why),
            },
            "/api/v1/events" => {
                let ask = self
                    .worker
                    .ask(move |sources| events::json(sources, &query));
                self.json(ask.await)
            }
            path => match assets::at(path) {
                Some(asset) => {
                    let content = Content::Whole(Some(Bytes::from_static(asset.content)));
                    let mut answer = answer::data(asset.kind, content);
                    let ask_again = HeaderValue::from_static("no-cache");
                    answer.headers_mut().insert(CACHE_CONTROL, ask_again);
                    answer
                }
                None => answer::error(StatusCode::NOT_FOUND, "there is nothing at this path"),
            },
        }
    }

    fn json(&self, answer: Result<Result<Value, Trouble>, Unanswered>) -> Answer {
        match answer {
            Ok(Ok(value)) => answer::data(JSON, value.to_string().into()),
            Ok(Err(Trouble::Request(why))) => answer::error(StatusCode::BAD_REQUEST, &why),
            Ok(Err(Trouble::Missing(why))) => answer::error(StatusCode::NOT_FOUND, &why),
            Ok(Err(Trouble::Server(why))) => self.failed(&why),
            Err(why) => unanswered(why),
        }
    }

    /// Says why the groups cannot be read. Everybody does not learn the path of a private root.
    fn failed(&self, why: &str) -> Answer {
        let why = match self.scope.public {
            true => "the groups cannot be read; try again",
            false => why,
        };
        answer::error(StatusCode::SERVICE_UNAVAILABLE, why)
    }

    /// Sends a browser with the right token to the page, so that the token leaves the address.
    fn with_cookie(&self) -> Answer {
        let mut answer = answer::data(JSON, Content::empty());
        *answer.status_mut() = StatusCode::SEE_OTHER;
        let headers = answer.headers_mut();
        // Relative, because a reverse proxy may have the server at a path of its own.
        headers.insert(LOCATION, HeaderValue::from_static("./"));
        if let Some(cookie) = self.access.cookie()
            && let Ok(cookie) = cookie.parse()
        {
            headers.insert(SET_COOKIE, cookie);
        }
        answer
    }

    async fn metrics(&self) -> Answer {
        match self.worker.ask(Sources::page).await {
            Ok(Ok(page)) => {
                answer::data(exposition::CONTENT_TYPE, Content::Metrics(Text::new(page)))
            }
            Ok(Err(failure)) => self.failed(&failure.to_string()),
            Err(why) => unanswered(why),
        }
    }

    async fn state(&self) -> Answer {
        match self.worker.ask(State::read).await {
            Ok(Ok(state)) => answer::data(JSON, state.text().into()),
            Ok(Err(failure)) => self.failed(&failure.to_string()),
            Err(why) => unanswered(why),
        }
    }

    async fn stream(&self, is_head: bool, peer: Peer) -> Answer {
        const KIND: &str = "text/event-stream";
        if is_head {
            return answer::data(KIND, Content::empty());
        }
        let Some(place) = self.streams.place(peer) else {
            return answer::error(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many event streams are open; close some",
            );
        };
        // Events that come after the state are sent, so collect them from now on.
        let state = self.worker.ask(|sources| {
            events::begin(sources);
            State::read(sources)
        });
        match state.await {
            Ok(Ok(state)) => {
                let queue = self.streams.open(&state, place);
                answer::data(KIND, Content::Events(queue))
            }
            Ok(Err(failure)) => self.failed(&failure.to_string()),
            Err(why) => unanswered(why),
        }
    }
}

/// Returns whether the client takes a stream of events.
fn accepts_events(head: &Parts) -> bool {
    let texts = head.headers.get_all(ACCEPT).iter();
    texts.filter_map(|text| text.to_str().ok()).any(|text| {
        let kinds = text.split(',').filter_map(|range| range.split(';').next());
        kinds
            .map(str::trim)
            .any(|kind| kind.eq_ignore_ascii_case("text/event-stream"))
    })
}

fn unanswered(why: Unanswered) -> Answer {
    let text = match why {
        Unanswered::Stuck => "reading the groups or asking NVML takes too long; try again",
        Unanswered::Failed => "reading the groups has failed; the log of the server says why",
    };
    answer::error(StatusCode::SERVICE_UNAVAILABLE, text)
}
