"""Errors of the server.

ServerError
+-- InvalidSettingsError      the settings contradict each other or the machine
+-- KeyFileError              the file of API keys cannot be read, trusted or changed
+-- AccessError               the caller may not do this
|   +-- UnauthenticatedError      no key, or none that is valid
|   +-- InsufficientScopeError    the key is valid, but not for this
|   +-- CrossSiteError            a browser sends it for a page of another site
+-- RequestError              what the caller sent cannot be answered as it stands
|   +-- InvalidHttpError          what came is no HTTP request, or its head is beyond the limits
|   +-- InvalidJsonError          the body is not strict UTF-8 JSON
|   +-- InvalidRequestError       a well-formed request with an impossible value
|   +-- BodyTooLargeError         more bytes than the server takes
|   +-- ReceiveTimeoutError       the body did not arrive in time
|   +-- UnsupportedMediaTypeError the body is not declared as JSON
|   +-- TooManyInputsError        more texts than one request may carry
|   +-- TooManyTasksError         more tasks than one request may name
|   +-- RequestTooLargeError      more work than one request may bring
|   +-- TextTooLongError          more characters than one text may have
|   +-- TooManyTokensError        more tokens than are read at once, where long texts are refused
|   +-- EmptyTextError            a text with nothing to read in it
|   +-- InvalidTextError          a text that no tokenizer can take
|   +-- ModelNotFoundError        an embedding model that this server does not have
|   +-- WrongInputKindError       an input of a kind that the task's head does not answer
+-- UnavailableError          the request is fine, the server cannot serve it now
|   +-- OverloadedError           too much is queued already
|   |   +-- ShareExceededError        too much of one caller, or for one task, is queued already
|   +-- DeadlineExceededError     the deadline passed first
|   |   +-- DeadlineTooShortError     the deadline would pass first: refused at once
|   +-- NotReadyError             the server is starting or its engine has stopped
|   +-- DrainingError             the server is shutting down
|   +-- OutOfMemoryError          the device or the host had no memory left for a batch or a load
|   +-- BackboneUnhealthyError    the backbone itself computes no finite outputs
|   +-- EngineFailedError         what every answer needs is lost: the process must be restarted
+-- TaskError                 one task version cannot be served; its neighbours can
    +-- TaskUnhealthyError        the version computes no finite outputs
    +-- TaskDoesNotFitError       the version needs more memory than there ever is for it
    +-- TaskInUseError            an eviction of a version that answers requests right now
    +-- TaskPinnedError           an eviction of a version that was pinned
"""

from nunatak_server.errors.base import (
    AccessError,
    CrossSiteError,
    InsufficientScopeError,
    InvalidSettingsError,
    KeyFileError,
    ServerError,
    UnauthenticatedError,
)
from nunatak_server.errors.requests import (
    BodyTooLargeError,
    EmptyTextError,
    InvalidHttpError,
    InvalidJsonError,
    InvalidRequestError,
    InvalidTextError,
    ModelNotFoundError,
    ReceiveTimeoutError,
    RequestError,
    RequestTooLargeError,
    TextTooLongError,
    TooManyInputsError,
    TooManyTasksError,
    TooManyTokensError,
    UnsupportedMediaTypeError,
    WrongInputKindError,
)
from nunatak_server.errors.serving import (
    BackboneUnhealthyError,
    DeadlineExceededError,
    DeadlineTooShortError,
    DrainingError,
    EngineFailedError,
    NotReadyError,
    OutOfMemoryError,
    OverloadedError,
    ShareExceededError,
    TaskDoesNotFitError,
    TaskError,
    TaskInUseError,
    TaskPinnedError,
    TaskUnhealthyError,
    UnavailableError,
)

__all__ = [
    "AccessError",
    "BackboneUnhealthyError",
    "BodyTooLargeError",
    "CrossSiteError",
    "DeadlineExceededError",
    "DeadlineTooShortError",
    "DrainingError",
    "EmptyTextError",
    "EngineFailedError",
    "InsufficientScopeError",
    "InvalidHttpError",
    "InvalidJsonError",
    "InvalidRequestError",
    "InvalidSettingsError",
    "InvalidTextError",
    "KeyFileError",
    "ModelNotFoundError",
    "NotReadyError",
    "OutOfMemoryError",
    "OverloadedError",
    "ReceiveTimeoutError",
    "RequestError",
    "RequestTooLargeError",
    "ServerError",
    "ShareExceededError",
    "TaskDoesNotFitError",
    "TaskError",
    "TaskInUseError",
    "TaskPinnedError",
    "TaskUnhealthyError",
    "TextTooLongError",
    "TooManyInputsError",
    "TooManyTasksError",
    "TooManyTokensError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedMediaTypeError",
    "WrongInputKindError",
]
