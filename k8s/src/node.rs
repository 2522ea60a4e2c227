//! Runs the plugin on a node: registers with each new kubelet, and removes unused allocations.

use crate::allocations::{Allocations, Swept};
use crate::api::registration_client::RegistrationClient;
use crate::api::{self, Empty, RegisterRequest};
use crate::cards::Cards;
use crate::options::Options;
use crate::plugin::{Plugin, WISHES};
use crate::socket::{Identity, Socket};
use crate::{grpc, library, pods, say};
use gpulimit_base::file_system::is_mount_point;
use gpulimit_base::patience;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The name of the plugin's socket, in the directory where kubelet looks for plugins' sockets.
const ENDPOINT: &str = "gpulimit.sock";
/// The name of kubelet's socket.
const KUBELET: &str = "kubelet.sock";

/// Returns the interval at which the plugin checks whether kubelet was restarted.
fn tick() -> Duration {
    patience::of("GPULIMIT_DEBUG_TICK_MS", Duration::from_millis(500))
}

/// Returns the longest time that the plugin waits for kubelet to connect after the plugin's
/// registration.
fn listens() -> Duration {
    patience::of("GPULIMIT_DEBUG_LISTENS_MS", Duration::from_secs(10))
}

/// The state of the plugin.
struct Node {
    options: Arc<Options>,
    cards: Cards,
    /// The files that [`library::install`] returned; they must stay open while the plugin runs.
    _installed: [File; 2],
    plugin: Arc<Plugin>,
    /// The socket of the kubelet at which the plugin is registered, and the time of registration.
    registered_with: Option<(Identity, Instant)>,
    /// The last log line about the registration.
    registration: OnChange,
    /// The last log line about kubelet's list of pods.
    pods: OnChange,
    /// The allocations whose owner (pod and container) has been logged.
    owners_logged: BTreeSet<String>,
    /// The failures of the last sweep of unused allocations.
    troubles: BTreeSet<String>,
}

/// Runs the plugin until the process gets SIGTERM or SIGINT.
pub fn run(options: Options) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async { Node::prepare(options)?.work().await })
}

impl Node {
    /// Prepares everything that must exist before the plugin is registered, because containers can
    /// start right after the registration.
    fn prepare(options: Options) -> Result<Self, String> {
        let cards = Cards::find().map_err(|error| {
            format!(
                "cannot find GPUs: NVML (libnvidia-ml.so.1) says '{error}'; run this pod with \
                     NVIDIA's runtime"
            )
        })?;
        let source = match &options.library {
            Some(library) => library.clone(),
            None => {
                let there = |path: &PathBuf| path.is_file();
                let found = library::places().into_iter().find(there);
                found.ok_or(
                    "cannot find libgpulimit.so beside this program: name the library in --library",
                )?
            }
        };
        let directory = options.state.join("lib");
        let installed = library::install(&source, &directory).map_err(|error| {
            let (from, to) = (source.display(), directory.display());
            format!("cannot copy {from} to {to}: {error}")
        })?;
        let allocations = Allocations::open(&options.root, &options.state)?;
        if !is_mount_point(&options.root) {
            say(format_args!(
                "{} is not a separate file system, so a container can fill the file system that \
                 contains this directory: docs/kubernetes.md says how to mount a separate one",
                options.root.display()
            ));
        }
        for trouble in allocations.recover()? {
            say(trouble);
        }
        let options = Arc::new(options);
        let plugin = Plugin::new(Arc::clone(&options), cards.all(), allocations, directory)?;
        for (card, count) in plugin.units() {
            say(format_args!("{card}: {count} {}", options.resource));
        }
        Ok(Self {
            options,
            cards,
            _installed: installed,
            plugin: Arc::new(plugin),
            registered_with: None,
            registration: OnChange::default(),
            pods: OnChange::default(),
            owners_logged: BTreeSet::new(),
            troubles: BTreeSet::new(),
        })
    }

    async fn work(mut self) -> Result<(), String> {
        let failed = |error| format!("cannot wait for signals: {error}");
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        // SIGTERM and SIGINT end the plugin at once, even while it waits for a kubelet that hangs.
        select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = self.serve() => {}
        }
        say("the plugin stops; containers keep running");
        Ok(())
    }

    /// Serves kubelet and removes unused allocations, forever.
    async fn serve(&mut self) {
        let mut served: Option<Served> = None;
        let (mut looked, mut swept) = (Instant::now(), None::<Instant>);
        loop {
            if !served
                .as_ref()
                .is_some_and(|served| served.socket.is_there())
            {
                drop(served.take());
                served = self.listen();
            }
            if served.is_some() {
                self.register().await;
            }
            if looked.elapsed() >= self.options.health {
                looked = Instant::now();
                if self.cards.look() {
                    self.plugin.show(self.cards.all());
                    for card in self.cards.all() {
                        let is = if card.healthy {
                            "healthy"
                        } else {
                            "not answering"
                        };
                        say(format_args!("{} is {is}", card.id));
                    }
                }
            }
            if swept.is_none_or(|swept| swept.elapsed() >= self.options.sweep) {
                swept = Some(Instant::now());
                self.sweep().await;
            }
            sleep(tick()).await;
        }
    }

    /// Opens the plugin's socket. A new socket must be registered with kubelet.
    fn listen(&mut self) -> Option<Served> {
        self.registered_with = None;
        let path = self.options.kubelet.join(ENDPOINT);
        match Socket::listen(path.clone()) {
            Ok((socket, listener)) => {
                let plugin = Arc::clone(&self.plugin);
                let task = tokio::spawn(grpc::serve(listener, plugin));
                Some(Served { socket, task })
            }
            Err(error) => {
                self.registration
                    .note(format!("cannot listen at {}: {error}", path.display()));
                None
            }
        }
    }

    /// Registers the plugin if kubelet was restarted, or if kubelet does not listen to the plugin's
    /// list of units.
    async fn register(&mut self) {
        let path = self.options.kubelet.join(KUBELET);
        let before = self.registered_with.take();
        let Some(kubelet) = Identity::of(&path) else {
            self.registration
                .note(format!("waiting for kubelet to make {}", path.display()));
            return;
        };
        match before {
            Some((known, _)) if known != kubelet => self.registration = OnChange::default(),
            Some((_, since)) if self.plugin.is_watched() || since.elapsed() < listens() => {
                self.registered_with = before;
                return;
            }
            _ => {}
        }
        let resource = &self.options.resource;
        let said = match register_at(&path, resource).await {
            Ok(()) => {
                self.registered_with = Some((kubelet, Instant::now()));
                format!("registered {resource} with kubelet")
            }
            Err(error) => format!("cannot register {resource} with kubelet: {error}"),
        };
        self.registration.note(said);
    }

    /// Removes the allocations that no pod uses, and logs the owners of the other allocations.
    async fn sweep(&mut self) {
        let asked = Instant::now();
        let pods = pods::list(&self.options.pods, &self.options.resource).await;
        // A kubelet that has just started lists no pods yet. So ignore a list that lacks the
        // plugin's own pod.
        let own = self.options.pod.as_ref();
        let knows = |pods: &pods::Pods| own.is_none_or(|own| pods.names.contains(own));
        match &pods {
            Ok(_) => self.pods = OnChange::default(),
            Err(error) => self.pods.note(format!(
                "cannot list kubelet's pods at {}: {error}",
                self.options.pods.display()
            )),
        }
        let owners = pods.ok().filter(knows).map(|pods| pods.owners);
        let swept = self.plugin.allocations().sweep(
            owners.as_ref().map(|owners| (asked, owners)),
            self.options.keep,
        );
        let swept = swept.unwrap_or_else(|trouble| Swept {
            troubles: vec![trouble],
            ..Swept::default()
        });
        let troubles = BTreeSet::from_iter(swept.troubles);
        for trouble in &troubles {
            // Log a failed removal once, not in every sweep.
            if !self.troubles.contains(trouble) {
                say(trouble);
            }
        }
        self.troubles = troubles;
        for name in swept.removed {
            self.owners_logged.remove(&name);
            say(format_args!("removed {name}: no pod uses this group"));
        }
        let Some(owners) = owners else {
            return;
        };
        let first = self.plugin.allocations().first_units().unwrap_or_default();
        for (name, unit) in first {
            let Some(owner) = owners.get(&unit) else {
                continue;
            };
            // The next sweep tries again.
            let _ = self.plugin.allocations().name_owner(&name, owner);
            if self.owners_logged.insert(name.clone()) {
                say(format_args!("group {name} belongs to {owner}"));
            }
        }
    }
}

/// The last log line about one subject. A new line is logged only if it differs.
#[derive(Default)]
struct OnChange(String);

impl OnChange {
    fn note(&mut self, text: String) {
        if self.0 != text {
            say(&text);
            self.0 = text;
        }
    }
}

/// The plugin's socket and the task that serves it. Dropping this value ends both.
struct Served {
    socket: Socket,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn register_at(kubelet: &Path, resource: &str) -> Result<(), String> {
    let request = RegisterRequest {
        version: api::VERSION.into(),
        endpoint: ENDPOINT.into(),
        resource: resource.into(),
        options: Some(WISHES),
    };
    let answer = grpc::ask(kubelet, async |kubelet| {
        RegistrationClient::new(kubelet).register(request).await
    });
    answer.await.map(|Empty {}| ())
}
