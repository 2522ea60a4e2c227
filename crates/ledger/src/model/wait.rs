//! Models of the words of a waiting request.

use super::super::wait::Request;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::sync::Arc;

#[derive(Default)]
struct Words([AtomicU64; 4]);

impl Words {
    fn request(&self) -> Request<'_, AtomicU64> {
        let [ticket, device, bytes, since] = &self.0;
        Request {
            ticket,
            device,
            bytes,
            since,
        }
    }
}

#[test]
fn a_reader_sees_the_figures_of_one_request_or_none() {
    const FIRST: [u64; 3] = [1, 2, 3];
    const SECOND: [u64; 3] = [4, 5, 6];
    super::weak::bounded_model(None, || {
        let words = Arc::new(Words::default());
        let theirs = Arc::clone(&words);
        let waiter = thread::spawn(move || {
            let request = theirs.request();
            request.write(10, FIRST);
            request.erase();
            request.write(20, SECOND);
        });
        if let Some(seen) = words.request().read() {
            assert!(seen == FIRST || seen == SECOND, "{seen:?}");
        }
        waiter.join().expect("the waiter");
        assert_eq!(words.request().read(), Some(SECOND));
    });
}
