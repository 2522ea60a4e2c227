//! A client of HTTP that sends exactly what a test says.

use gpulimit_support::wait_until;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

pub trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// An answer of the server.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// The headers with names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json", "{self:?}");
        serde_json::from_str(&self.body).expect("JSON")
    }

    /// Reads the head of an answer. The body follows in the stream.
    pub fn head(stream: &mut dyn Stream) -> io::Result<Self> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.extend(byte);
        }
        let text = String::from_utf8(head).expect("UTF-8");
        let mut lines = text.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        let headers = lines.filter_map(|line| line.split_once(": "));
        Ok(Self {
            status: status.parse().unwrap(),
            headers: headers
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect(),
            body: String::new(),
        })
    }

    /// Reads a whole answer.
    pub fn read(stream: &mut dyn Stream) -> io::Result<Self> {
        let mut answer = Self::head(stream)?;
        let mut body = Vec::new();
        if answer
            .headers
            .get("transfer-encoding")
            .is_some_and(|it| it == "chunked")
        {
            loop {
                let chunk = chunk(stream)?;
                if chunk.is_empty() {
                    break;
                }
                body.extend(chunk);
            }
        } else if let Some(length) = answer.headers.get("content-length") {
            body.resize(length.parse().unwrap(), 0);
            stream.read_exact(&mut body)?;
        }
        answer.body = String::from_utf8(body).expect("UTF-8");
        Ok(answer)
    }
}

/// Reads a chunk of a body; empty at the end.
fn chunk(stream: &mut dyn Stream) -> io::Result<Vec<u8>> {
    let mut size = Vec::new();
    while !size.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        size.extend(byte);
    }
    let size = String::from_utf8(size).unwrap();
    let size = usize::from_str_radix(size.trim(), 16).expect("hexadecimal digits");
    let mut chunk = vec![0; size + 2];
    stream.read_exact(&mut chunk)?;
    chunk.truncate(size);
    Ok(chunk)
}

impl Place {
    pub fn connect(&self) -> Box<dyn Stream> {
        let patience = Some(gpulimit_support::patience());
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).expect("connected");
                stream.set_read_timeout(patience).unwrap();
                Box::new(stream)
            }
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).expect("connected");
                stream.set_read_timeout(patience).unwrap();
                Box::new(stream)
            }
        }
    }

    /// Returns the value of the header `Host` that a browser would send.
    pub fn host(&self) -> String {
        match self {
            Self::Tcp(address) => address.to_string(),
            Self::Unix(_) => "localhost".into(),
        }
    }

    /// Sends a text as it is, and reads an answer.
    pub fn send(&self, text: &str) -> io::Result<Answer> {
        let mut stream = self.connect();
        stream.write_all(text.as_bytes())?;
        Answer::read(&mut *stream)
    }

    /// Sends a request with more headers.
    pub fn ask(&self, method: &str, path: &str, headers: &[&str]) -> Answer {
        let headers: String = headers
            .iter()
            .map(|header| format!("{header}\r\n"))
            .collect();
        let host = self.host();
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n"
        ))
        .expect("an answer")
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[])
    }

    /// Returns the JSON at a path.
    pub fn json(&self, path: &str) -> Value {
        self.answer(path).json()
    }

    /// Returns the metrics as text.
    pub fn metrics(&self) -> String {
        self.answer("/metrics").body
    }

    /// Returns the answer with status 200. On a busy machine a reading may take longer than the
    /// server waits for it; it then says that the client may ask again.
    fn answer(&self, path: &str) -> Answer {
        let mut answer = self.get(path);
        wait_until("the server has time", || {
            if answer.status == 503 {
                answer = self.get(path);
            }
            answer.status != 503
        });
        assert_eq!(answer.status, 200, "{answer:?}");
        answer
    }
}
