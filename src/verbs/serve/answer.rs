//! Answers and refusals, with the headers that all answers have.

use super::access::Refusal;
use super::exposition::Text;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName,
    HeaderValue, REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use serde_json::json;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What the page may load and do: only files and data of this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

pub type Answer = Response<Content>;

pub const JSON: &str = "application/json";

/// Returns a refusal as JSON.
pub fn refused(Refusal(status, why): Refusal) -> Answer {
    let content = json!({ "error": why }).to_string();
    let mut answer = data(JSON, content.into());
    *answer.status_mut() = status;
    let extra: Option<(HeaderName, &'static str)> = match status {
        StatusCode::METHOD_NOT_ALLOWED => Some((ALLOW, "GET, HEAD")),
        StatusCode::UNAUTHORIZED => Some((WWW_AUTHENTICATE, "Bearer")),
        StatusCode::SERVICE_UNAVAILABLE => Some((RETRY_AFTER, "5")),
        _ => None,
    };
    let headers = answer.headers_mut();
    if let Some((name, value)) = extra {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // The server does not read the body of a request, which may follow a refused head. A client
    // without the token keeps no connection.
    if matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
    ) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// Returns an answer with data, which no cache keeps.
pub fn data(kind: &'static str, content: Content) -> Answer {
    let mut answer = Response::new(content);
    let headers = answer.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// The body of an answer.
pub enum Content {
    Whole(Option<Bytes>),
    /// Metrics, made while the client reads.
    Metrics(Text),
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Whole(Some(text.into()))
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let bytes = match &mut *self {
            Self::Whole(bytes) => bytes.take(),
            Self::Metrics(text) => match text.piece() {
                Ok(piece) => (!piece.is_empty()).then(|| Bytes::from(piece)),
                // The connection is closed in the middle of the answer, so that the client notices.
                Err(dropped) => return Poll::Ready(Some(Err(dropped))),
            },
        };
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            _ => SizeHint::default(),
        }
    }
}
