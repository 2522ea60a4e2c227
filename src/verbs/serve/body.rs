//! The bodies of answers.

use super::exposition::Text;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

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
