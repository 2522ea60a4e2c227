//! Kubelet's side: takes registrations, lists pods, calls the plugin.

use gpulimit_k8s::api::{
    self, AllocateRequest, AllocateResponse, Choice, Container, ContainerDevices, Device,
    DeviceList, Edits, Empty, Pod, PodList, PreferenceRequest, PreferenceResponse, RegisterRequest,
    Units,
};
use gpulimit_k8s::grpc::{self, Answer, Code, Service, Status, Watch};
use prost::Message;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;

/// What kubelet is told and tells.
#[derive(Default)]
pub struct Books {
    /// Registrations, as they came.
    pub registered: Vec<RegisterRequest>,
    /// Whether it says no to them.
    pub refuses: bool,
    /// Who has what.
    pub pods: PodList,
}

struct Desk(Arc<Mutex<Books>>);

impl Service for Desk {
    fn call(&self, path: &str, message: &[u8]) -> Result<Answer, Status> {
        let mut books = self.0.lock().unwrap();
        match path {
            api::REGISTER if books.refuses => {
                Err(Status::new(Code::Unknown, "not today: 100 % no"))
            }
            api::REGISTER => {
                let request = RegisterRequest::decode(message).expect("a registration");
                books.registered.push(request);
                Ok(Answer::One(Empty {}.encode_to_vec()))
            }
            api::LIST_PODS => Ok(Answer::One(books.pods.encode_to_vec())),
            _ => Err(Status::new(Code::Unimplemented, path)),
        }
    }
}

/// A kubelet in a directory of its own.
pub struct Kubelet {
    folder: PathBuf,
    books: Arc<Mutex<Books>>,
    handle: Handle,
    tasks: Vec<JoinHandle<()>>,
}

impl Kubelet {
    /// One that has not started.
    pub fn new(folder: PathBuf) -> Self {
        fs::create_dir(&folder).expect("a directory");
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        Self {
            folder,
            books: Arc::default(),
            handle,
            tasks: Vec::new(),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn pods_socket(&self) -> PathBuf {
        self.folder.join("pods.sock")
    }

    pub fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    /// Starts, or starts anew: all sockets are removed, as kubelet does.
    pub fn start(&mut self) {
        self.stop();
        for entry in fs::read_dir(&self.folder).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for name in ["kubelet.sock", "pods.sock"] {
            let _inside = self.handle.enter();
            let listener = UnixListener::bind(self.folder.join(name)).expect("a socket");
            let desk = Arc::new(Desk(Arc::clone(&self.books)));
            self.tasks
                .push(self.handle.spawn(grpc::serve(listener, desk)));
        }
    }

    pub fn stop(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }

    /// The plugin's socket, as it was registered last.
    fn plugin(&self) -> PathBuf {
        let books = self.books();
        let last = books.registered.last().expect("registered");
        self.folder.join(&last.endpoint)
    }

    pub fn call<A: Message + Default>(
        &self,
        path: &str,
        message: &impl Message,
    ) -> Result<A, Status> {
        let socket = self.plugin();
        self.handle.block_on(grpc::call(&socket, path, message))
    }

    pub fn watch(&self) -> Stream {
        let socket = self.plugin();
        let watch = grpc::watch(&socket, api::LIST_AND_WATCH, &Empty {});
        let watch = self.handle.block_on(watch).expect("a stream");
        Stream(watch, self.handle.clone())
    }

    pub fn allocate(&self, ids: &[String]) -> Result<Edits, Status> {
        let containers = vec![Units { ids: ids.to_vec() }];
        let request = AllocateRequest { containers };
        let answer: AllocateResponse = self.call(api::ALLOCATE, &request)?;
        assert_eq!(answer.containers.len(), 1);
        Ok(answer.containers.into_iter().next().unwrap())
    }

    pub fn prefer(&self, available: &[String], size: i32) -> Result<Vec<String>, Status> {
        let containers = vec![Choice {
            available: available.to_vec(),
            must_include: Vec::new(),
            size,
        }];
        let request = PreferenceRequest { containers };
        let answer: PreferenceResponse = self.call(api::PREFERENCE, &request)?;
        Ok(answer.containers.into_iter().next().unwrap().ids)
    }

    /// From now on these pods, of one container each, have these units.
    pub fn set_pods(&self, pods: &[(&str, &[String])]) {
        let pod = |(name, ids): &(&str, &[String])| Pod {
            name: (*name).into(),
            namespace: "default".into(),
            containers: vec![Container {
                name: "main".into(),
                devices: vec![
                    ContainerDevices {
                        resource: "example.com/other".into(),
                        ids: vec!["x".into()],
                    },
                    ContainerDevices {
                        resource: "gpulimit.dev/gpu-memory".into(),
                        ids: ids.to_vec(),
                    },
                ],
            }],
        };
        let pods = pods.iter().map(pod).collect();
        self.books().pods = PodList { pods };
    }
}

/// What `ListAndWatch` sends.
pub struct Stream(Watch, Handle);

impl Stream {
    pub fn next(&mut self) -> Option<Vec<Device>> {
        let list: Result<Option<DeviceList>, Status> = self.1.block_on(self.0.next());
        list.ok().flatten().map(|list| list.devices)
    }
}
