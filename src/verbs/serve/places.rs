//! The places of connections, which users share.

use super::peer::Peer;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, Semaphore, oneshot};

/// The places of all connections. Without a free place, a user with fewer of them takes the place
/// of the oldest one of the user with the most; others wait. A connection that has shown the token
/// has a place of another kind, and is never dropped for another one.
pub struct Places {
    /// The most that have not shown the token, and the most that have.
    most: usize,
    all: Mutex<All>,
    freed: Notify,
    waiting: Semaphore,
}

#[derive(Default)]
struct All {
    /// The oldest place first.
    taken: Vec<Taken>,
    last: u64,
}

struct Taken {
    number: u64,
    peer: Peer,
    has_token: bool,
    /// Dropping it ends the connection.
    _keep: oneshot::Sender<()>,
}

/// A place. Dropping it frees the place.
pub struct Place {
    places: Arc<Places>,
    number: u64,
}

/// Resolves when the place is lost.
pub type Lost = oneshot::Receiver<()>;

impl Places {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            all: Mutex::default(),
            freed: Notify::new(),
            waiting: Semaphore::new(most),
        }
    }

    /// Waits for a place. Returns `None` if too many connections wait already.
    pub async fn wait(self: &Arc<Self>, peer: Peer) -> Option<(Place, Lost)> {
        if let Some(place) = self.take(peer) {
            return Some(place);
        }
        let _waits = self.waiting.try_acquire().ok()?;
        loop {
            // It hears of places that are freed from now on.
            let freed = self.freed.notified();
            if let Some(place) = self.take(peer) {
                return Some(place);
            }
            freed.await;
        }
    }

    /// Takes a place, if there is one for this user.
    fn take(self: &Arc<Self>, peer: Peer) -> Option<(Place, Lost)> {
        let mut all = self.lock();
        let without: Vec<Peer> = all.without_token().map(|taken| taken.peer).collect();
        if without.len() >= self.most {
            let count = |peer: &Peer| without.iter().filter(|other| *other == peer).count();
            let most = without.iter().max_by_key(|peer| count(peer))?;
            if count(most) <= count(&peer) {
                return None;
            }
            let oldest = all
                .without_token()
                .find(|taken| taken.peer == *most)?
                .number;
            all.taken.retain(|taken| taken.number != oldest);
        }
        let (keep, lost) = oneshot::channel();
        all.last += 1;
        let number = all.last;
        all.taken.push(Taken {
            number,
            peer,
            has_token: false,
            _keep: keep,
        });
        let places = Arc::clone(self);
        let place = Place { places, number };
        Some((place, lost))
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    fn without_token(&self) -> impl Iterator<Item = &Taken> {
        self.taken.iter().filter(|taken| !taken.has_token)
    }
}

impl Place {
    /// Notes that the client has shown the token. Returns false if too many others have.
    pub fn show_token(&self) -> bool {
        let mut all = self.places.lock();
        let others = all.taken.iter().filter(|taken| taken.has_token).count();
        let own = all
            .taken
            .iter_mut()
            .find(|taken| taken.number == self.number);
        let Some(own) = own else { return false };
        if !own.has_token {
            own.has_token = others < self.places.most;
            if own.has_token {
                self.places.freed.notify_waiters();
            }
        }
        own.has_token
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let is_other = |taken: &Taken| taken.number != self.number;
        self.places.lock().taken.retain(is_other);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: usize = 64;

    #[test]
    fn a_user_loses_places_only_to_users_with_fewer() {
        let places = Arc::new(Places::new(PLACES));
        let take = |user: u32| places.take(Peer(Some(user)));
        let mut many: Vec<_> = std::iter::from_fn(|| take(1)).collect();
        assert_eq!(many.len(), PLACES);
        let others: Vec<_> = std::iter::from_fn(|| take(2)).collect();
        assert_eq!(
            others.len(),
            PLACES / 2,
            "as many as the first user has then"
        );
        let is_lost = |place: &mut (Place, Lost)| {
            place
                .1
                .try_recv()
                .is_err_and(|error| error == oneshot::error::TryRecvError::Closed)
        };
        let lost: Vec<bool> = many.iter_mut().map(is_lost).collect();
        let expected: Vec<bool> = (0..PLACES).map(|at| at < PLACES / 2).collect();
        assert_eq!(lost, expected, "the oldest");
        assert!(take(1).is_none() && take(3).is_some());
    }

    #[test]
    fn a_connection_with_the_token_is_never_dropped() {
        let places = Arc::new(Places::new(PLACES));
        let take = |user: u32| places.take(Peer(Some(user)));
        let mut shown: Vec<_> = (0..PLACES).map(|_| take(1).expect("free")).collect();
        assert!(
            shown
                .iter()
                .all(|(place, _)| place.show_token() && place.show_token())
        );
        let others: Vec<_> = std::iter::from_fn(|| take(2)).collect();
        assert_eq!(others.len(), PLACES, "they have places of their own");
        assert!(!others[0].0.show_token(), "too many");
        let third = take(3).expect("a place");
        let open = Err(oneshot::error::TryRecvError::Empty);
        assert!(shown.iter_mut().all(|(_, lost)| lost.try_recv() == open));
        drop(shown);
        assert!(third.0.show_token());
    }
}
