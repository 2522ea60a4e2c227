//! What the server has at which path.

use super::access::{Access, Admitted, Refusal, Scope};
use super::answer::{self, Answer, Content, JSON};
use super::assets;
use super::exposition::{self, Text};
use super::places::Place;
use super::worker::{Sources, Worker};
use super::{api, query};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH, LOCATION, SET_COOKIE};
use hyper::http::request::Parts;

/// What all connections share.
pub struct Site {
    pub access: Access,
    pub scope: Scope,
    pub worker: Worker,
}

impl Site {
    /// Answers a request.
    pub async fn answer(&self, head: Parts, place: &Place) -> Answer {
        let answer = self.find(&head, place).await;
        answer.unwrap_or_else(answer::refused)
    }

    async fn find(&self, head: &Parts, place: &Place) -> Result<Answer, Refusal> {
        let admitted = self.access.admit(head)?;
        if self.access.token.is_some() && !place.show_token() {
            return Err(Refusal::unavailable(
                "too many connections are open; close some",
            ));
        }
        if admitted == Admitted::ByAddress {
            return Ok(self.with_cookie());
        }
        let query = head.uri.query().unwrap_or("").to_owned();
        let json = |text: String| answer::data(JSON, text.into());
        Ok(match head.uri.path() {
            "/metrics" => {
                let text = Text::new(self.ask(Sources::page).await?);
                answer::data(exposition::CONTENT_TYPE, Content::Metrics(text))
            }
            "/api/v1/state" => {
                query::check(&query, &[])?;
                let (text, tag) = self.ask(api::state).await?;
                let is_known = head.headers.get(IF_NONE_MATCH) == Some(&tag);
                let mut answer = json(if is_known { String::new() } else { text });
                if is_known {
                    *answer.status_mut() = StatusCode::NOT_MODIFIED;
                }
                answer.headers_mut().insert(ETAG, tag);
                answer
            }
            "/api/v1/history" => json(
                self.ask(move |sources| api::history(sources, &query))
                    .await?,
            ),
            "/api/v1/events" => json(
                self.ask(move |sources| api::events(sources, &query))
                    .await?,
            ),
            path => {
                let nothing =
                    || Refusal::new(StatusCode::NOT_FOUND, "there is nothing at this path");
                let asset = assets::at(path).ok_or_else(nothing)?;
                let content = Content::Whole(Some(Bytes::from_static(asset.content)));
                let mut answer = answer::data(asset.kind, content);
                let ask_again = HeaderValue::from_static("no-cache");
                answer.headers_mut().insert(CACHE_CONTROL, ask_again);
                answer
            }
        })
    }

    /// Lets the worker answer a question.
    async fn ask<T: Send + 'static, E: Into<Refusal> + Send + 'static>(
        &self,
        question: impl FnOnce(&mut Sources) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Refusal> {
        let why = match self.worker.ask(question).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(why)) => match why.into() {
                // Everybody does not learn the path of a private root.
                Refusal(StatusCode::SERVICE_UNAVAILABLE, _) if self.scope.public => {
                    "the groups cannot be read; try again"
                }
                refusal => return Err(refusal),
            },
            Err(why) => why,
        };
        Err(Refusal::unavailable(why))
    }

    /// Sends a browser with the right token to the page, so that the token leaves the address.
    fn with_cookie(&self) -> Answer {
        let mut answer = answer::data(JSON, Content::Whole(None));
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
}
